"""What is rewritten for a CPU, and that nothing is for a GPU."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner
from mmengine.runner import runner as mmengine_runner

from clustr_mm.runs import cpu
from clustr_mm.runs.runner import CheckedRunner
from tests.runs import ROOT
from tests.samples import batch


@pytest.fixture
def cfg():
    return Config(
        dict(
            launcher='pytorch',
            model=dict(heads=[dict(norm_cfg=dict(type='SyncBN', eps=1))]),
            optim_wrapper=dict(type='AmpOptimWrapper', loss_scale='dynamic'),
            custom_hooks=[dict(type='EMAHook')],
            find_unused_parameters=True,
            val_evaluator=dict(type='Accuracy'),
            test_evaluator=[dict(type='Accuracy')],
        )
    )


def adapted(cfg):
    return cpu.cpu_distribution(cpu.cpu_mixed_precision(cfg))


def test_gpu_host_changes_nothing(cfg, monkeypatch):
    monkeypatch.setattr(cpu, 'get_device', lambda: 'cuda')
    before = cfg.to_dict()
    assert adapted(cfg).to_dict() == before


def test_cpu_host(cfg, monkeypatch):
    monkeypatch.setattr(cpu, 'get_device', lambda: 'cpu')
    cfg = adapted(cfg)
    assert cfg.env_cfg.dist_cfg.backend == 'gloo'
    assert cfg.model.heads[0].norm_cfg == dict(type='BN', eps=1)
    assert cfg.optim_wrapper == dict(type='CPUAmpOptimWrapper')
    assert [h.type for h in cfg.custom_hooks] == [
        'EMAHook',
        'AverageBuffersHook',
    ]
    for metric in (cfg.val_evaluator, cfg.test_evaluator[0]):
        assert metric == dict(type='Accuracy', collect_device='gpu')
    assert cfg.model_wrapper_cfg.device_ids is None
    assert cfg.model_wrapper_cfg.find_unused_parameters


@pytest.mark.parametrize('device', ['cpu', 'cuda'])
def test_runner_opens_the_process_group(device, cfg, monkeypatch):
    """Before MMEngine does, which would set a CUDA device for that."""
    opened = []
    monkeypatch.setattr(cpu, 'get_device', lambda: device)
    monkeypatch.setattr(torch.distributed, 'init_process_group', opened.append)
    monkeypatch.setattr(Runner, 'setup_env', lambda self, env_cfg: None)
    runner = object.__new__(CheckedRunner)
    runner.cfg = cfg
    for runner._distributed in (False, True):
        runner.setup_env(dict(dist_cfg=dict(backend='gloo')))
    assert opened == (['gloo'] if device == 'cpu' else [])


def test_wrapped_as_on_a_gpu(cfg, monkeypatch):
    """By the arguments that MMEngine gives where no wrapper is configured."""
    monkeypatch.setattr(mmengine_runner, 'MMDistributedDataParallel', dict)
    monkeypatch.setenv('LOCAL_RANK', '3')
    host = SimpleNamespace(distributed=True, cfg=cfg)
    expected = Runner.wrap_model(host, None, torch.nn.Linear(2, 2))
    assert expected.pop('device_ids') == [3]
    expected.pop('module')
    monkeypatch.setattr(cpu, 'get_device', lambda: 'cpu')
    cpu.cpu_distribution(cfg)
    assert cfg.model_wrapper_cfg == dict(
        expected, type='MMDistributedDataParallel', device_ids=None
    )


def test_buffers_are_averaged_where_no_hook_was(cfg, monkeypatch):
    monkeypatch.setattr(cpu, 'get_device', lambda: 'cpu')
    cfg.pop('custom_hooks')
    cfg = adapted(cfg)
    assert [h.type for h in cfg.custom_hooks] == ['AverageBuffersHook']


def test_mixed_precision_on_a_cpu():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = cpu.CPUAmpOptimWrapper(optimizer=optimizer)
    before = model.weight.clone()
    with wrapper.optim_context(model):
        out = model(torch.randn(2, 4))
        assert out.dtype == torch.bfloat16
    wrapper.update_params(out.float().sum())
    assert not torch.equal(model.weight, before)


class Model(torch.nn.Module):
    """Notes in which type its parts work."""

    def __init__(self):
        super().__init__()
        self.backbone = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 4)

    def forward(self, x):
        self.inner = self.backbone(x)
        return self.head(self.inner)


def test_mixed_precision_of_parts():
    model = Model()
    wrapper = cpu.CPUAmpOptimWrapper(
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        parts=('backbone',),
    )
    x = torch.randn(2, 4)
    plain = model(x)
    with wrapper.optim_context(model):
        out = model(x)
    assert out.dtype == model.inner.dtype == torch.float32
    rounded = model.inner.bfloat16().float()
    assert torch.equal(model.inner, rounded)  # made in bfloat16
    assert not torch.equal(out, out.bfloat16().float())
    torch.testing.assert_close(out, plain, atol=0.1, rtol=0.1)
    assert torch.equal(model(x), plain)  # as before once it is over
    before = model.backbone.weight.clone()
    wrapper.update_params(out.square().sum())
    assert not torch.equal(model.backbone.weight, before)


@pytest.mark.parametrize(
    ('scope', 'parts'),
    [
        ('mmdet', ('backbone', 'neck')),
        ('mmpose', ('backbone', 'neck')),
        ('mmseg', None),
        ('mmpretrain', None),
    ],
)
def test_parts_by_toolbox(scope, parts, cfg, monkeypatch):
    monkeypatch.setattr(cpu, 'get_device', lambda: 'cpu')
    cfg.launcher, cfg.default_scope = 'none', scope
    cfg = adapted(cfg)
    assert cfg.optim_wrapper.get('parts') == parts


@pytest.mark.parametrize(
    'name',
    [
        'evit/mask_rcnn_evit_s_k07_coco.py',
        'clustr/retinanet_clustr_t_coco.py',
        'hvt/pose_hvt_s1_wholebody.py',
    ],
)
def test_heads_without_bfloat16_train(name, monkeypatch):
    cfg = Config.fromfile(ROOT / 'configs' / name)
    pytest.importorskip(cfg.default_scope)
    monkeypatch.setattr(cpu, 'get_device', lambda: 'cpu')
    cfg.optim_wrapper.type = 'AmpOptimWrapper'
    cfg = adapted(cfg)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model).train()
        wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
        is_pose = cfg.default_scope == 'mmpose'
        size = (256, 192) if is_pose else (64, 64)
        data = batch(cfg.default_scope, cfg, size)
        before = [p.clone() for p in model.backbone.parameters()]
        losses = model.train_step(data, wrapper)
    assert all(loss.isfinite().all() for loss in losses.values())
    after = list(model.backbone.parameters())
    assert not all(map(torch.equal, before, after))
