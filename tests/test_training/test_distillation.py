"""A student's tokens approach its teacher's."""

import pytest
import torch
from mmengine.registry import MODELS

from clustr_mm.backbones.evit import EViT
from clustr_mm.training.distillation import TokenDistiller, retained
from tests.test_training.small import images
from tests.tiny_models import TRAINED, TRAINED_ARCH

TEACHER = dict(
    TRAINED,
    type='ThinViT',
    arch=dict(TRAINED_ARCH, embed_dims=48, num_heads=3),
    out_type='raw',
)


def distiller(backbone=None, **changes):
    cfg = dict(
        type='TokenDistiller',
        backbone=backbone or dict(TRAINED, type='EViT', keep=0.5),
        teacher=TEACHER,
        teacher_dims=48,
    )
    return MODELS.build({**cfg, **changes})


def learn(model, loss, inputs, steps=60, lr=3e-3):
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(inputs).backward()
        optimizer.step()


@torch.no_grad()
def measured(model, inputs):
    return {k: float(v) for k, v in model.similarity(inputs).items()}


def test_features_approach_and_fall_back():
    """With the loss they come close, and with another instead they part."""
    model = distiller()
    inputs, unseen = images(16), images(16)
    before = measured(model, unseen)
    learn(model, lambda x: model.parse_losses(model.loss(x))[0], inputs)
    close = measured(model, unseen)
    for kind in ('cosine_class', 'cosine_patch'):
        assert abs(before[kind]) < 0.5
        assert close[kind] > before[kind] + 0.3

    head = torch.nn.Linear(32, 3)
    labels = torch.arange(16) % 3

    def classify(x):
        logits = head(model.backbone(x)[-1][:, 0])
        return torch.nn.functional.cross_entropy(logits, labels)

    learn(model, classify, inputs)
    apart = measured(model, unseen)
    for kind in ('cosine_class', 'cosine_patch'):
        assert apart[kind] < close[kind] - 0.1


def test_retained_tokens_are_compared_where_they_are():
    """A student that is its teacher, but for the tokens that are fused."""
    model = distiller(
        dict(TRAINED, type='EViT', keep=0.5, reduce_at=[3]),
        teacher=dict(TRAINED, type='ThinViT', out_type='raw'),
        teacher_dims=32,
    )
    network = model.teacher.network
    network.load_state_dict(model.backbone.state_dict())
    for project in (model.project_class, model.project_patch):
        torch.nn.init.eye_(project.weight)
        torch.nn.init.zeros_(project.bias)
    found = measured(model, images(3))
    assert found['cosine_class'] == pytest.approx(1, abs=1e-5)
    # In the last block the others leave after attention: no one misses them.
    assert found['cosine_patch'] == pytest.approx(1, abs=1e-5)


def test_retained():
    backbone = EViT(**TRAINED, keep=0.5)
    backbone.out_type = 'raw'
    outs, trail = backbone.eval().trace(images(2))
    x = outs[-1][:, 1:]
    stays = retained(trail, x)
    owner = trail.owner
    for image in range(2):
        for patch in range(16):
            shares = (owner[image] == owner[image, patch]).sum() > 1
            assert stays[image, patch] != shares
    # 16 -> 8 + 1 -> 5 + 1 -> 3 + 1, some of which are older fused tokens.
    assert x.shape[1] == 4
    assert stays.sum(1).max() <= 3


@pytest.mark.parametrize('patch_weight', [0.0, 1.0])
@pytest.mark.parametrize('kind', ['ThinViT', 'EViT', 'DynamicViT'])
def test_every_parameter_learns(kind, patch_weight):
    backbone = dict(TRAINED, type=kind)
    if kind == 'DynamicViT':
        # Its predictors learn from a ratio loss, not from a teacher.
        model = distiller(backbone, patch_weight=patch_weight).eval()
    else:
        model = distiller(backbone, patch_weight=patch_weight).train()
    losses = model.loss(images(2))
    assert ('loss_patch' in losses) == bool(patch_weight)
    model.parse_losses(losses)[0].backward()
    idle = [
        n
        for n, p in model.named_parameters()
        if p.grad is None and 'predictor' not in n
    ]
    assert not idle
    assert not any('teacher' in name for name in model.state_dict())


def test_forward():
    model = distiller().eval()
    inputs = images(2)
    assert isinstance(model, TokenDistiller)
    assert set(model(inputs, mode='loss')) == {
        'loss_class',
        'loss_patch',
        'cosine_class',
        'cosine_patch',
    }
    assert model(inputs)[-1].shape == (2, 5, 32)
    with pytest.raises(ValueError, match='no labels'):
        model(inputs, mode='predict')


def test_bad_arguments():
    model = distiller(teacher=dict(TEACHER, patch_size=16))
    with pytest.raises(ValueError, match='same patch size'):
        model.loss(images(2))
    with pytest.raises(ValueError, match='class token'):
        distiller(dict(TRAINED, type='HVT'))


def test_no_gradient_reaches_a_teacher():
    """Nor goes through it, were it to pictures that can learn."""
    found = distiller().teacher(images(1).requires_grad_())[-1]
    assert not found.requires_grad


def test_teacher_goes_where_the_pictures_are():
    """Sharding moves the model's children alone, and it is none."""
    teacher = distiller().teacher
    seen = teacher(images(2).to('meta'))[-1]
    assert seen.device.type == 'meta'
    assert all(p.is_meta for p in teacher.network.parameters())
