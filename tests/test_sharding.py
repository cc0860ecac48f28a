"""Sharded parameters (FSDP), in two processes on a CPU."""

import re

import pytest
import torch

from clustr_mm.safe_loading import load
from tests import small_training
from tests.runs import ROOT, TOOLS, run, run_tool

pytestmark = pytest.mark.slow

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
        PORT='29581',
        PYTHONPATH=str(ROOT),
    )
    found = re.findall(r'Iter\(train\) *\[ *(\d+)/.*? loss: ([\d.]+)', log)
    return {int(i): float(loss) for i, loss in found}


def same(first, second):
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


# Without a teacher, DynamicLVViT's head has parameters that learn nothing:
# plain distributed training refuses them.
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
