"""What is rewritten for a CPU, and that nothing is for a GPU."""

import pytest
import torch
from mmengine.config import Config

from clustr_mm import host


@pytest.fixture
def cfg():
    return Config(
        dict(
            launcher='pytorch',
            model=dict(heads=[dict(norm_cfg=dict(type='SyncBN', eps=1))]),
            optim_wrapper=dict(type='AmpOptimWrapper', loss_scale='dynamic'),
            custom_hooks=[dict(type='EMAHook')],
            find_unused_parameters=True,
        )
    )


def test_gpu_host_changes_nothing(cfg, monkeypatch):
    monkeypatch.setattr(host, 'get_device', lambda: 'cuda')
    before = cfg.to_dict()
    host.adapt(cfg)
    assert cfg.to_dict() == before


def test_cpu_host(cfg, monkeypatch):
    opened = []
    monkeypatch.setattr(host, 'get_device', lambda: 'cpu')
    monkeypatch.setattr(torch.distributed, 'init_process_group', opened.append)
    host.adapt(cfg)
    assert opened == ['gloo']
    assert cfg.model.heads[0].norm_cfg == dict(type='BN', eps=1)
    assert cfg.optim_wrapper == dict(type='CPUAmpOptimWrapper')
    assert [h.type for h in cfg.custom_hooks] == ['EMAHook', 'SyncBuffersHook']
    assert cfg.model_wrapper_cfg.device_ids is None
    assert cfg.model_wrapper_cfg.find_unused_parameters


def test_mixed_precision_on_a_cpu():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = host.CPUAmpOptimWrapper(optimizer=optimizer)
    before = model.weight.clone()
    with wrapper.optim_context(model):
        out = model(torch.randn(2, 4))
        assert out.dtype == torch.bfloat16
    wrapper.update_params(out.float().sum())
    assert not torch.equal(model.weight, before)
