"""Configs of the toolboxes with our backbones: built, run, refused."""

import os

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope

from clustr_mm.errors import UserError
from clustr_mm.swapping import BACKBONES, find_config, swap_backbone
from tests.runs import run_tool
from tests.samples import batch
from tests.test_configs import without_sync_bn

POSE = 'mmpose::body_2d_keypoint'
slow = pytest.mark.slow

SWAPS = [
    ('mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py', 'clustr_t'),
    ('mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', 'evit_s_k07'),
    ('mmdet::detr/detr_r50_8xb2-150e_coco.py', 'dynamicvit_s_k07'),
    (
        'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py',
        'hvt_s1',
    ),
    (
        'mmseg::deeplabv3plus/'
        'deeplabv3plus_r50-d8_4xb4-160k_ade20k-512x512.py',
        'clustr_t',
    ),
    (
        f'{POSE}/topdown_heatmap/coco/'
        'td-hm_hrnet-w32_8xb64-210e_coco-256x192.py',
        'clustr_t',
    ),
    (
        f'{POSE}/simcc/coco/simcc_res50_8xb64-210e_coco-256x192.py',
        'token_pooling_s_k07',
    ),
    ('mmpretrain::resnet/resnet50_8xb32_in1k.py', 'evit_s_k07'),
]
MORE_SWAPS = [
    ('mmdet::cascade_rcnn/cascade-rcnn_r50_fpn_1x_coco.py', 'hvt_s1'),
    ('mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py', 'token_pooling_s_k07'),
    ('mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py', 'dynamicvit_s_k07'),
    ('mmdet::atss/atss_r50_fpn_1x_coco.py', 'clustr_s'),
    ('mmdet::deformable_detr/deformable-detr_r50_16xb2-50e_coco.py', 'hvt_s1'),
    ('mmdet::libra_rcnn/libra-faster-rcnn_r50_fpn_1x_coco.py', 'clustr_t'),
    ('mmdet::libra_rcnn/libra-faster-rcnn_r50_fpn_1x_coco.py', 'evit_s_k07'),
    ('mmdet::yolox/yolox_s_8xb8-300e_coco.py', 'clustr_t'),
    ('mmseg::upernet/upernet_r50_4xb4-160k_ade20k-512x512.py', 'tome_s_r8'),
    ('mmseg::upernet/upernet_r50_4xb4-160k_ade20k-512x512.py', 'evit_s_k07'),
    ('mmseg::sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py', 'hvt_s1'),
    (
        'mmseg::deeplabv3plus/'
        'deeplabv3plus_r50-d8_4xb4-160k_ade20k-512x512.py',
        'dynamicvit_s_k07',
    ),
    (
        'mmseg::pspnet/pspnet_r50-d8_4xb4-160k_ade20k-512x512.py',
        'token_pooling_s_k07',
    ),
    ('mmseg::ocrnet/ocrnet_hr18_4xb4-160k_ade20k-512x512.py', 'clustr_t'),
    (
        'mmseg::vit/vit_deit-s16_mln_upernet_8xb2-160k_ade20k-512x512.py',
        'clustr_t',
    ),
    (
        'mmseg::vit/vit_deit-s16_mln_upernet_8xb2-160k_ade20k-512x512.py',
        'evit_s_k07',
    ),
    (
        f'{POSE}/topdown_heatmap/coco/td-hm_res50_8xb64-210e_coco-256x192.py',
        'hvt_s1',
    ),
    (
        f'{POSE}/topdown_heatmap/coco/'
        'td-hm_ViTPose-small-simple_8xb64-210e_coco-256x192.py',
        'evit_s_k07',
    ),
    (
        f'{POSE}/topdown_heatmap/coco/'
        'td-hm_ViTPose-small_8xb64-210e_coco-256x192.py',
        'clustr_s',
    ),
    (
        f'{POSE}/rtmpose/coco/rtmpose-s_8xb256-420e_coco-256x192.py',
        'dynamicvit_s_k07',
    ),
    (
        f'{POSE}/topdown_regression/coco/'
        'td-reg_res50_8xb64-210e_coco-256x192.py',
        'clustr_t',
    ),
    (
        'mmpretrain::vision_transformer/vit-base-p16_64xb64_in1k.py',
        'clustr_t',
    ),
    ('mmpretrain::swin_transformer/swin-tiny_16xb64_in1k.py', 'hvt_s1'),
    ('mmpretrain::deit/deit-small_4xb256_in1k.py', 'token_pooling_s_k07'),
]


@pytest.fixture(autouse=True)
def _scope():
    yield
    init_default_scope('mmengine')


def samples(cfg):
    """A batch for any of these models."""
    scope = cfg.default_scope
    if scope != 'mmpose':
        return batch(scope, cfg, (64, 64))
    data = batch(scope, cfg, (256, 192))
    head = cfg.model.head
    joints = head.get('out_channels') or head.num_joints
    for sample in data['data_samples']:
        labels = sample.gt_instance_labels
        if 'simcc_split_ratio' in head:
            width, height = (
                int(side * head.simcc_split_ratio) for side in head.input_size
            )
            labels.keypoint_x_labels = torch.rand(1, joints, width)
            labels.keypoint_y_labels = torch.rand(1, joints, height)
        labels.keypoint_labels = torch.rand(1, joints, 2)
        sample.gt_instances.keypoints_visible = np.ones((1, joints))
    return data


@pytest.mark.parametrize(
    ('base', 'backbone'),
    [*SWAPS, *(pytest.param(*swap, marks=slow) for swap in MORE_SWAPS)],
)
def test_swapped_model_trains(base, backbone, tmp_path):
    pytest.importorskip(base.partition('::')[0])
    out = tmp_path / 'my.py'
    notes = swap_backbone(base, backbone, out, adamw=True)
    assert f'-> {BACKBONES[backbone]["type"]}' in notes[0]
    cfg = Config.fromfile(out)
    init_default_scope(cfg.default_scope)
    if cfg.default_scope == 'mmseg':
        cfg.model.data_preprocessor.size = (64, 64)
    # As the runner does.
    cfg.model.setdefault('data_preprocessor', cfg.get('data_preprocessor'))
    MessageHub.get_current_instance().update_info('iter', 0)
    model = MODELS.build(without_sync_bn(cfg.model))
    model.init_weights()  # some leave memory as it is until then
    model.train()
    data = model.data_preprocessor(samples(cfg), True)
    losses, _ = model.parse_losses(model(**data, mode='loss'))
    losses.backward()
    assert losses.isfinite()
    params = list(model.backbone.parameters())
    assert all(p.grad is not None for p in params)
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
    assert type(optimizer).__name__ == 'AdamW'
    assert sum(len(g['params']) for g in optimizer.param_groups) == len(
        [p for p in model.parameters() if p.requires_grad]
    )


@pytest.mark.parametrize(
    ('base', 'message'),
    [
        (
            'mmdet::faster_rcnn/faster-rcnn_r50-caffe_c4-1x_coco.py',
            "old backbone's last stage",
        ),
        ('mmdet::ssd/ssd300_coco.py', 'SSDNeck'),
        (
            'mmpretrain::deit/deit-small-distilled_4xb256_in1k.py',
            'DeiTClsHead',
        ),
        (
            f'{POSE}/topdown_heatmap/coco/'
            'td-hm_hourglass52_8xb32-210e_coco-256x256.py',
            'CPMHead',
        ),
        ('mmdet::no/such.py', 'mmdet has no config no/such.py'),
        ('nowhere::no/such.py', "'nowhere'"),
        ('no.py', 'there is no config file no.py'),
    ],
)
def test_refusals_write_nothing(base, message, tmp_path):
    out = tmp_path / 'my.py'
    with pytest.raises(UserError, match=message):
        swap_backbone(base, 'clustr_t', out)
    assert not list(tmp_path.iterdir())


def test_model_that_does_not_run_is_not_written(tmp_path):
    """Whatever the reason: here, a neck that leaves too few channels."""
    base = tmp_path / 'base.py'
    original = find_config('mmpretrain::resnet/resnet18_8xb32_in1k.py')
    base.write_text(
        f'_base_ = {str(original)!r}\n'
        "model = dict(neck=dict(_delete_=True, type='LinearNeck', "
        'in_channels=512, out_channels=8))\n'
    )
    with pytest.raises(UserError, match='nothing was written'):
        swap_backbone(str(base), 'clustr_t', tmp_path / 'my.py')
    assert [path.name for path in tmp_path.iterdir()] == ['base.py']


def test_tool_says_what_it_changed(tmp_path):
    """From a file, with a path to it that may be moved along."""
    base = tmp_path / 'bases/mine.py'
    base.parent.mkdir()
    original = find_config('mmpose::' + SWAPS[6][0].partition('::')[2])
    base.write_text(f'_base_ = {str(original)!r}\n')
    log = run_tool(
        *('swap_backbone.py', base, 'clustr_t', '--out', 'swapped/my.py'),
        cwd=tmp_path,
    )
    assert 'model.backbone: ResNet -> ClusTR' in log
    assert 'model.head.in_channels: 2048 -> 512' in log
    text = (tmp_path / 'swapped/my.py').read_text()
    assert f'_base_ = {os.path.join("..", "bases", "mine.py")!r}' in text
    assert len(text.splitlines()) < 20
    message = run_tool(
        'swap_backbone.py',
        base,
        'resnet',
        '--out',
        'x.py',
        cwd=tmp_path,
        ok=False,
    )
    assert "no backbone 'resnet'" in message
    assert 'Traceback' not in message
