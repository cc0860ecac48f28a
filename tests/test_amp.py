"""Every backbone trains in mixed precision, of both kinds."""

import math
from statistics import mean

import pytest
import torch

from clustr_mm.runs import launch
from tests import small_training
from tests.runs import run_tool


def train(folder, backbone, iters, dtype):
    """Losses by iteration of ``tools/train.py --amp``."""
    # Without a GPU --amp is in bfloat16, with one in float16.
    hidden = dict(CUDA_VISIBLE_DEVICES='') if dtype == 'bfloat16' else {}
    log = run_tool(
        *('train.py', *small_training.write(folder, backbone), '--amp'),
        *('--cfg-options', f'train_cfg.max_iters={iters}'),
        'default_hooks.checkpoint.interval=1000',
        cwd=folder,
        OMP_NUM_THREADS='1',
        **hidden,
    )
    wrapper = 'CPUAmpOptimWrapper' if hidden else 'AmpOptimWrapper'
    assert f"type='{wrapper}'" in log
    assert 'No step was taken' not in log  # for the sake of a NaN
    return [row['loss'] for row in small_training.logged(folder / 'work')]


@pytest.mark.slow
@pytest.mark.parametrize(
    'dtype', ['bfloat16', pytest.param('float16', marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize('backbone', small_training.BACKBONES)
def test_200_iterations(backbone, dtype, tmp_path):
    losses = train(tmp_path, backbone, 200, dtype)
    assert len(losses) == 200
    assert all(map(math.isfinite, losses))
    assert mean(losses[-20:]) < 0.8 * mean(losses[:20])


@pytest.mark.skipif(torch.cuda.is_available(), reason='trains in float16')
@pytest.mark.parametrize('backbone', small_training.BACKBONES)
def test_few_iterations(backbone, tmp_path):
    cfg = small_training.config(
        tmp_path, backbone, **{'log_level': 'ERROR', 'train_cfg.max_iters': 3}
    )
    launch.enable_amp(cfg)
    runner = launch.build_runner(cfg)
    found = set()
    for module in runner.model.backbone.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(
                lambda module, args, out: found.add(out.dtype)
            )
    runner.train()
    rows = small_training.logged(tmp_path / 'work')
    assert [math.isfinite(row['loss']) for row in rows] == [True] * 3
    assert found == {torch.bfloat16}
    assert all(p.dtype == torch.float32 for p in runner.model.parameters())
