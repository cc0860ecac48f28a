"""Weights to give on: what a run has written, without the run."""

import hashlib
import re

import numpy as np
import pytest
import torch
import yaml
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn

from clustr_mm.checkpoints.publishing import publish
from clustr_mm.errors import UserError
from tests.runs import run_tool


class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 1)
        self.bn = nn.BatchNorm1d(1)

    def forward(self, inputs, data_samples=None, mode='tensor'):
        out = self.bn(self.fc(torch.stack(inputs)))
        return {'loss': out.square().mean()} if mode == 'loss' else [out]


class Data(torch.utils.data.Dataset):
    metainfo = dict(
        classes=('cat', 'dog'),
        palette=[(1, 2, 3), (4, 5, 6)],
        sigmas=np.ones(2, np.float32),
        keypoint_id2name={0: 'nose'},
        crop=slice(3),
    )

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return dict(inputs=torch.tensor([i, 1.0 - i]), data_samples=i)


class Metric:
    dataset_meta = None

    def process(self, *args):
        pass

    def evaluate(self, size):
        return {'score': 0.75}


@pytest.fixture(scope='module')
def work(tmp_path_factory):
    """A run with averaged weights and a best checkpoint."""
    work = tmp_path_factory.mktemp('run') / 'work'
    loader = dict(
        batch_size=2,
        num_workers=0,
        dataset=Data(),
        sampler=dict(type='DefaultSampler', shuffle=False),
        collate_fn=dict(type='pseudo_collate'),
    )
    runner = Runner(
        Model(),
        str(work),
        train_dataloader=loader,
        val_dataloader=loader,
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=0.1)),
        train_cfg=dict(by_epoch=True, max_epochs=2, val_interval=1),
        val_cfg={},
        val_evaluator=[Metric()],
        default_hooks=dict(
            checkpoint=dict(
                type='CheckpointHook', save_best='score', rule='greater'
            )
        ),
        custom_hooks=[dict(type='EMAHook')],
        experiment_name='to_publish',
    )
    runner.train()
    return work


def test_weights_alone(work, tmp_path):
    written = publish(work / 'epoch_2.pth', tmp_path / 'new/mine.pth')
    content = written.path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:8]
    assert written.path == tmp_path / f'new/mine-{digest}.pth'
    assert len(list(written.path.parent.iterdir())) == 1
    file = torch.load(written.path, weights_only=True)
    assert file.keys() == {'meta', 'state_dict'}
    run = torch.load(work / 'epoch_2.pth', weights_only=False)
    assert file['state_dict'].keys() == run['state_dict'].keys()
    # The averaged ones.
    for name, value in file['state_dict'].items():
        assert torch.equal(value, run['state_dict'][name])
    raw = run['ema_state_dict']['module.fc.weight']
    assert not torch.equal(file['state_dict']['fc.weight'], raw)
    # Nothing tells where it was trained.
    assert str(work.parent).encode() not in content
    assert b'to_publish' not in content
    assert written.num_parameters == 2 + 1 + 1 + 1
    assert written.metrics == {'score': 0.75}


def test_what_inferencers_draw_by(work, tmp_path):
    path = publish(work / 'epoch_2.pth', tmp_path / 'mine.pth').path
    told = torch.load(path, weights_only=True)['meta']['dataset_meta']
    assert told == dict(
        classes=('cat', 'dog'),
        palette=[(1, 2, 3), (4, 5, 6)],
        sigmas=[1.0, 1.0],
        keypoint_id2name={0: 'nose'},
        crop=None,
    )


def test_the_same_weights_have_the_same_name(work, tmp_path):
    one = publish(work / 'epoch_2.pth', tmp_path / 'mine.pth')
    assert publish(work / 'epoch_2.pth', tmp_path / 'mine.pth') == one
    [best] = work.glob('best_*.pth')  # of the first epoch
    other = publish(best, tmp_path / 'mine.pth')
    assert other.path != one.path


def test_folder_of_a_run(work, tmp_path):
    [best] = work.glob('best_*.pth')
    assert (
        publish(work, tmp_path / 'a.pth').path.read_bytes()
        == publish(best, tmp_path / 'a.pth').path.read_bytes()
    )
    copy = tmp_path / 'copy'
    copy.mkdir()
    with pytest.raises(UserError, match='no checkpoint in'):
        publish(copy, tmp_path / 'b.pth')
    # Elsewhere by now, and without a best one.
    for name in ('epoch_2.pth', 'last_checkpoint'):
        (copy / name).write_bytes((work / name).read_bytes())
    publish(copy, tmp_path / 'b.pth')
    (copy / 'best_a.pth').touch()
    (copy / 'best_b.pth').touch()
    with pytest.raises(UserError, match='several best .*best_a.*best_b'):
        publish(copy, tmp_path / 'b.pth')


def test_distributed_and_plain_state_dicts(tmp_path):
    torch.save({'module.w': torch.ones(3)}, tmp_path / 'in.pth')
    written = publish(tmp_path / 'in.pth', tmp_path / 'out.pth')
    file = torch.load(written.path, weights_only=True)
    assert list(file['state_dict']) == ['w']
    assert written.metrics == {}


def test_part_of_a_larger_tensor(tmp_path):
    """It does not bring along what it is cut out of."""
    torch.save({'w': torch.zeros(1000, 1000)[:1, :1]}, tmp_path / 'in.pth')
    path = publish(tmp_path / 'in.pth', tmp_path / 'out.pth').path
    assert path.stat().st_size < 5000


def test_refused(work, tmp_path):
    with pytest.raises(UserError, match='must end with .pth'):
        publish(work / 'epoch_2.pth', tmp_path / 'mine')
    with pytest.raises(UserError, match='there is no checkpoint'):
        publish(tmp_path / 'no.pth', tmp_path / 'mine.pth')
    (tmp_path / 'file').touch()
    with pytest.raises(UserError, match='cannot write'):
        publish(work / 'epoch_2.pth', tmp_path / 'file/mine.pth')
    torch.save({'state_dict': {'w': 3}}, tmp_path / 'in.pth')
    with pytest.raises(UserError, match='holds no state dict'):
        publish(tmp_path / 'in.pth', tmp_path / 'mine.pth')


def test_tool(work, tmp_path):
    out = run_tool(
        *('publish_model.py', work, 'mine.pth'),
        *('--config', 'configs/evit/evit_s_k07_imagenet.py'),
        cwd=tmp_path,
    )
    name = re.search(r'^mine-[0-9a-f]{8}\.pth$', out, re.M)[0]
    [entry] = yaml.safe_load(out.split('\n\n')[-1])
    assert (tmp_path / name).is_file()
    assert entry == dict(
        Name='mine',
        Config='configs/evit/evit_s_k07_imagenet.py',
        Metadata=dict(Parameters=5),
        Results=[
            dict(Task='TASK', Dataset='DATASET', Metrics=dict(score=0.75))
        ],
        Weights=f'https://.../{name}',
    )
