"""Maps whose patches keep what they were beyond their tokens."""

import pytest
import torch

from clustr_mm.layers.reducer import Reducer
from tests.tiny_models import CASES, EARLY_AND_LATE, build, images

FUSED_TWICE = [
    dict(type='AttentiveTokens', block=1, keep=0.5),
    dict(type='AttentiveTokens', block=3, keep=0.4),
]
KEPT_THEN_CLUSTERED = [
    dict(type='AttentiveTokens', block=1, keep=0.5, fuse=False),
    dict(type='PooledTokens', block=3, keep=0.1, clustering='kmeans'),
]


@pytest.mark.parametrize('name', CASES)
def test_blocks_that_add_nothing_leave_the_map(name):
    """Whatever is thinned: nothing of the patches is lost."""
    model = build(name, out_type='featmap', detail=True, qk_norm=None)
    for block in model.blocks:
        for layer in (block.attn.proj, block.mlp.fc2):
            torch.nn.init.zeros_(layer.weight)
            torch.nn.init.zeros_(layer.bias)
    img = images()
    with torch.no_grad():
        (fmap,) = model(img)
        x, _ = model.embed(img, track=False)
        expected = model.norm(x[:, model.num_extra_tokens :])
    torch.testing.assert_close(fmap.flatten(2).mT, expected)


@pytest.mark.parametrize(
    'reducers', [EARLY_AND_LATE, FUSED_TWICE, KEPT_THEN_CLUSTERED]
)
def test_patches_by_hand(reducers):
    """Each adds to its own value what its token has become since."""
    model = build(
        'dense', out_type='featmap', detail=True, reducers=reducers
    ).double()
    seen = []
    for reducer in model.modules():
        if isinstance(reducer, Reducer):
            reducer.register_forward_hook(
                lambda _, inputs, out: seen.append((inputs[0], out))
            )
    img = images().double()
    with torch.no_grad():
        (fmap,), trail = model.trace(img)
        final = model.run(img)[0][:, 1:]
    seen = seen[: len(reducers)]
    for b in range(2):
        for patch in range(64):
            value, token = seen[0][0][b, patch], patch
            for i, step in enumerate(trail.steps):
                token = step[b, token]
                if token >= seen[i][1].shape[1]:  # it left
                    break
                after = (seen[i + 1 :] or [(final, None)])[0][0]
                value = value + after[b, token] - seen[i][1][b, token]
            torch.testing.assert_close(
                fmap[b].flatten(1)[:, patch], model.norm(value)
            )
