"""Sharded parameters (FSDP), in two processes on a CPU."""

import re
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

from clustr_mm.checkpoints.safe_loading import load
from clustr_mm.runs.sharding import block_by_block
from tests import small_training
from tests.runs import ROOT, TOOLS, free_port, run, run_tool
from tests.tiny_models import CASES, build, clustr, images
from tests.torch_features import cpu_shards

slow = pytest.mark.slow
pytestmark = cpu_shards

# Pictures of tokens in the validation of a sharded model.
DRAWN = """
_base_ = ['other.py', '{root}/configs/_base_/sharded.py']
custom_hooks = [dict(type='TokenVisualizationHook', num_images=3)]
val_dataloader = dict(
    _delete_=True, **_base_.test_dataloader, drop_last=False
)
val_evaluator = dict(_delete_=True, type='Accuracy')
val_cfg = dict(_delete_=True, type='ValLoop')
train_cfg = dict(val_interval=2)
"""
SHARDED = """
_base_ = ['other.py', '{root}/configs/_base_/sharded.py']
"""


def train(folder, config, *options):
    """Two processes with two pictures each."""
    log = run(
        *(TOOLS / 'dist_train.sh', config, 2, *options),
        *('--cfg-options', 'train_dataloader.batch_size=2'),
        # So much that it shows if vectors, as all sharded parameters are,
        # were spared.
        'optim_wrapper.optimizer.weight_decay=0.5',
        'optim_wrapper.optimizer.lr=0.01',
        cwd=folder,
        OMP_NUM_THREADS='1',
        PORT=free_port(),
        PYTHONPATH=str(ROOT),
    )
    found = re.findall(r'Iter\(train\) *\[ *(\d+)/.*? loss: ([\d.]+)', log)
    return {int(i): float(loss) for i, loss in found}


def same(first, second):
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


@pytest.fixture
def _alone(tmp_path):
    store = f'file://{tmp_path}/store'
    dist.init_process_group('gloo', store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


MODELS = {
    **{name: partial(build, name, out_type='featmap') for name in CASES},
    'clustr': clustr,
    'clustr-reuse': partial(clustr, (2, 2, 1, 1), reuse=True),
    'clustr-share': partial(clustr, (2, 1, 1, 1), reuse=True, share=0.5),
    'clustr-sra': partial(clustr, attention='sra'),
}


@pytest.mark.usefixtures('_alone')
@pytest.mark.parametrize('with_cp', [False, True])
@pytest.mark.parametrize('name', MODELS)
def test_block_by_block(name, with_cp):
    """Outputs and gradients; a process alone shows what wrapping does."""
    results = []
    for wrapped in False, True:
        model = MODELS[name](with_cp=with_cp).train()
        # Dropped paths, and samples of a learned decision.
        torch.manual_seed(1)
        sharded = model
        if wrapped:
            sharded = FullyShardedDataParallel(
                model,
                auto_wrap_policy=block_by_block,
                device_id=torch.device('cpu'),
                use_orig_params=True,
            )
            units = FullyShardedDataParallel.fsdp_modules(sharded)
            kinds = [type(unit.module).__name__ for unit in units[1:]]
            assert set(kinds) <= {'Block', 'ClusTRBlock'}
            assert len(kinds) >= 4
        maps = sharded(images())
        sum(fmap.square().sum() for fmap in maps).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        results.append([*maps, *grads])
    torch.testing.assert_close(*results)


# Without a teacher, DynamicLVViT's head has parameters that learn nothing:
# plain distributed training refuses them.
@slow
@pytest.mark.parametrize(
    'backbone',
    [name for name in small_training.BACKBONES if name != 'DynamicLVViT'],
)
def test_as_without(backbone, tmp_path):
    """The losses and the weights, also when resumed; and in tools/test.py."""
    plain, *options = small_training.write(tmp_path, backbone)
    config = tmp_path / 'sharded.py'
    config.write_text(SHARDED.format(root=ROOT))
    *options, _, work = options
    work = tmp_path / 'replicated'
    expected = train(tmp_path, plain, *options, '--work-dir', work)
    assert sorted(expected) == [1, 2, 3, 4]

    options += ['--work-dir', tmp_path / 'sharded']
    assert train(tmp_path, config, *options) == pytest.approx(
        expected, abs=1e-4
    )
    end = load(tmp_path / 'sharded/iter_4.pth')
    same(end['state_dict'], load(work / 'iter_4.pth')['state_dict'])

    (tmp_path / 'sharded/iter_4.pth').unlink()
    resumed = train(tmp_path, config, *options, '--resume')
    assert resumed == pytest.approx({i: expected[i] for i in (3, 4)}, abs=1e-4)
    again = load(tmp_path / 'sharded/iter_4.pth')
    same(again['state_dict'], end['state_dict'])

    accuracy = [
        re.findall(
            r'accuracy/top1: ([\d.]+)',
            run_tool(
                *('test.py', tested, folder / 'iter_4.pth', *options),
                cwd=tmp_path,
            ),
        )
        for tested, folder in ((config, tmp_path / 'sharded'), (plain, work))
    ]
    assert len(accuracy[0]) == 1
    assert accuracy[0] == accuracy[1]


@slow
def test_tokens_are_drawn(tmp_path):
    """By the main process; the others do not wait for it."""
    _, *options, _, work = small_training.write(tmp_path, 'EViT')
    config = tmp_path / 'drawn.py'
    config.write_text(DRAWN.format(root=ROOT))
    losses = train(tmp_path, config, *options, '--work-dir', work)
    assert sorted(losses) == [1, 2, 3, 4]
    names = {path.name for path in work.glob('*/vis_data/vis_image/*')}
    # Of pictures named by their numbers, after two and four iterations.
    assert len(names) == 6, names
