"""The papers' recipes, as far as building a config does not test them."""

import pytest
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATA_SAMPLERS, MODELS, DefaultScope

from tests.runs import ROOT

pytest.importorskip('mmpretrain')


def read(name):
    return Config.fromfile(ROOT / 'configs' / name)


def groups(cfg):
    """Learning rate and weight decay of each parameter, and the model."""
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(cfg.model)
        optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
    found = {
        id(group['params'][0]): (group['lr'], group['weight_decay'])
        for group in optimizer.param_groups
    }
    return model, {
        name: found[id(param)]
        for name, param in model.named_parameters()
        if id(param) in found
    }


def test_dynamicvit_trains_predictors_a_hundred_times_faster():
    cfg = read('dynamicvit/dynamicvit_s_k07_imagenet.py')
    _, found = groups(cfg)
    for name, (lr, decay) in found.items():
        faster = 'predictor' in name
        assert lr == pytest.approx(1e-3 if faster else 1e-5)
        is_weight = name.endswith('weight') and 'norm' not in name
        if 'predictor.features.0' in name:
            is_weight = False
        assert decay == (0.05 if is_weight else 0), name
    assert cfg.train_cfg.max_epochs == 30
    (hook,) = cfg.custom_hooks
    assert (hook.type, hook.epoch) == ('FreezeUntil', 5)
    assert cfg.auto_scale_lr.base_batch_size == 1024


@pytest.mark.parametrize(
    ('name', 'shares'),
    [
        ('dynamicvit_s_k07_imagenet', [0.7, 0.49, 0.343]),
        ('ablation/dynamicvit_s_k06_2stages_imagenet', [0.6, 0.36]),
        ('ablation/dynamicvit_s_k025_1stage_imagenet', [0.25]),
    ],
)
def test_dynamicvit_stages(name, shares):
    model, _ = groups(read(f'dynamicvit/{name}.py'))
    assert model.shares == pytest.approx(shares)


@pytest.mark.parametrize(
    ('name', 'drop_path', 'ratio_weight'),
    [
        ('dynamicvit_s_k07', 0, 2),
        ('dynamicvit_b_k07', 0.2, 5),
        ('dynamicvit_lvvit_s_k07', 0, 2),
        ('dynamicvit_lvvit_m_k07', 0, 2),
    ],
)
def test_dynamicvit_as_the_published_commands_have_it(
    name, drop_path, ratio_weight
):
    """README of raoyongming/DynamicViT; only DeiT-B's sets the two."""
    cfg = read(f'dynamicvit/{name}_imagenet.py')
    assert cfg.model.ratio_weight == ratio_weight
    assert cfg.model.backbone.get('drop_path_rate', 0) == drop_path
    assert cfg.model.get('token_loss', 'mse') == (
        'kl' if 'lvvit' in name else 'mse'
    )
    assert cfg.model.kl_weight == cfg.model.token_weight == 0.5


def test_linear_probing_trains_the_head_alone():
    model, found = groups(read('evit/evit_s14_k07_linear_imagenette.py'))
    assert set(found) == {'head.fc.weight', 'head.fc.bias'}
    model.train()
    assert not model.backbone.norm.training


@pytest.mark.parametrize(
    ('name', 'lr', 'decay', 'batch'),
    [
        ('hvt/hvt_s1_imagenet.py', 5e-4, 0.025, 1024),
        ('hvt/hvt_s1_cifar100.py', 1.25e-4, 0.025, 128),
        ('evit/evit_s_k07_imagenet.py', 1e-3, 0.05, 1024),
        ('evit/evit_s_k07_finetune_imagenet.py', 2e-5, 1e-6, 1024),
        ('evit/distill_evit_s14_k07_coco.py', 1e-4, 0.01, 128),
    ],
)
def test_rates(name, lr, decay, batch):
    cfg = read(name)
    model, found = groups(cfg)
    assert cfg.auto_scale_lr.base_batch_size == batch
    for key, (rate, weight_decay) in found.items():
        assert rate == lr
        no_decay = 'norm' in key or key.endswith(
            ('bias', 'cls_token', 'pos_embed')
        )
        assert weight_decay == (0 if no_decay else decay), key


def test_search_moves_retention_fast_and_without_decay():
    _, found = groups(read('token_pooling/search_deit_s_imagenet.py'))
    retention = {v for k, v in found.items() if 'retention' in k}
    assert len(retention) == 1
    assert retention.pop() == pytest.approx((1e-3, 0))


@pytest.mark.parametrize(
    'name',
    [
        'hvt/hvt_s1_imagenet',
        'token_pooling/deit_s_imagenet',
        'evit/evit_s_k07_imagenet',
        'dynamicvit/dynamicvit_s_k07_imagenet',
    ],
)
def test_deit_repeats_augmented_images(name):
    """Table 9 of DeiT's paper: three times."""
    cfg = read(f'{name}.py').train_dataloader.sampler
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        sampler = DATA_SAMPLERS.build({**cfg, 'dataset': range(30)})
    indices = list(sampler)
    assert len(indices) == 30
    assert len(set(indices)) == 10
