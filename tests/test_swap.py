"""Configs of the toolboxes with our backbones: built, run, refused."""

import os

import pytest
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope

from clustr_mm import configs
from clustr_mm.errors import UserError
from clustr_mm.swap import swapping
from clustr_mm.swap.planning import Maps, plan
from clustr_mm.swap.probing import Output, StockError, outputs_of, parse
from clustr_mm.swap.swapping import find_config, presets, swap_backbone
from tests import sweep
from tests.runs import ROOT, run_tool

POSE = 'mmpose::body_2d_keypoint'
HRNETV2 = (
    'mmpose::face_2d_keypoint/topdown_heatmap/300w/'
    'td-hm_hrnetv2-w18_8xb64-60e_300w-256x256.py'
)
FASTFCN = (
    'mmseg::fastfcn/fastfcn_r50-d32_jpu_psp_4xb2-80k_cityscapes-512x1024.py'
)
EVIT = 'evit/evit_s_k07_imagenet.py'
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
    # A neck behind the new one, in MMPose.
    (HRNETV2, 'evit_s_k07'),
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
    *((FASTFCN, 'clustr_t'), (FASTFCN, 'evit_s_k07')),
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
    # It chooses 900 places of the picture to begin with.
    ('mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py', 'clustr_t'),
    # It is told where to look.
    ('mmdet::fast_rcnn/fast-rcnn_r50_fpn_1x_coco.py', 'clustr_t'),
    # Their plain forward asks for more than images.
    ('mmdet::boxinst/boxinst_r50_fpn_ms-90k_coco.py', 'clustr_t'),
    ('mmdet::maskformer/maskformer_r50_ms-16xb1-75e_coco.py', 'clustr_t'),
    # MMEngine finds no folder such as this by its short name.
    (
        'mmdet::legacy_1.x/retinanet_r50-caffe_fpn_1x_coco_v1.py',
        'clustr_t',
    ),
    # A neck that joins all maps, and one that begins with the deepest.
    (HRNETV2, 'clustr_t'),
    (f'{POSE}/rtmo/coco/rtmo-s_8xb32-600e_coco-640x640.py', 'clustr_t'),
    ('mmdet::yolo/yolov3_d53_8xb8-320-273e_coco.py', 'clustr_t'),
    # Anchors of stride 32, which no plain ViT has.
    ('mmdet::yolof/yolof_r50-c5_8xb8-1x_coco.py', 'evit_s_k07'),
    # Without a neck to replace.
    ('mmpretrain::convnext/convnext-tiny_32xb128_in1k.py', 'clustr_t'),
]


@pytest.fixture(autouse=True)
def _scope():
    yield
    init_default_scope('mmengine')


def preset(name):
    return Config.fromfile(presets()[name])[name].to_dict()


@pytest.mark.parametrize(
    ('base', 'backbone'),
    [*SWAPS, *(pytest.param(*swap, marks=slow) for swap in MORE_SWAPS)],
)
def test_swapped_model_trains(base, backbone, tmp_path):
    pytest.importorskip(base.partition('::')[0])
    out = tmp_path / 'my.py'
    notes = swap_backbone(base, backbone, out, adamw=True)
    assert f'-> {preset(backbone)["type"]}' in notes[0]
    cfg = Config.fromfile(out)
    model = sweep.train_and_predict(cfg, (64, 64))
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
    assert type(optimizer).__name__ == 'AdamW'
    assert sum(len(g['params']) for g in optimizer.param_groups) == len(
        [p for p in model.parameters() if p.requires_grad]
    )


@pytest.mark.parametrize(
    ('base', 'backbone', 'hooks'),
    [
        # One that has hooks of its own.
        (SWAPS[6][0], 'dynamicvit_s_k07', ['SyncBuffersHook', 'RatioLoss']),
        (SWAPS[1][0], 'dynamicvit_s_k07', ['RatioLoss']),
        (SWAPS[1][0], 'evit_s_k07', []),
    ],
)
def test_a_training_has_the_hooks_that_it_needs(
    base, backbone, hooks, tmp_path
):
    """Without the ratio loss, all tokens of a DynamicViT would stay."""
    out = tmp_path / 'my.py'
    notes = swap_backbone(base, backbone, out)
    cfg = Config.fromfile(out)
    assert [hook.type for hook in cfg.get('custom_hooks', [])] == hooks
    if 'RatioLoss' in hooks:
        assert 'custom_hooks: RatioLoss, which its training needs' in notes
        assert 'clustr_mm.training' in cfg.custom_imports.imports
        # To swap once more adds it once.
        swap_backbone(str(out), 'dynamicvit_s_k07', tmp_path / 'again.py')
        again = Config.fromfile(tmp_path / 'again.py')
        assert again.custom_hooks == cfg.custom_hooks


def test_a_rule_of_a_list_brings_the_hooks_that_it_needs(tmp_path):
    rules = [
        dict(type='PredictedTokens', block=block, keep=keep)
        for block, keep in ((3, 0.7), (6, 0.5))
    ]
    backbone = dict(type='ThinViT', arch='deit-tiny', reducers=rules)
    mine = tmp_path / 'mine.py'
    mine.write_text(f'model = {dict(backbone=backbone)}')
    out = tmp_path / 'swapped.py'
    swap_backbone(SWAPS[1][0], str(mine), out)
    assert Config.fromfile(out).custom_hooks == [dict(type='RatioLoss')]


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
        ('mmdet::no/such.py', 'there is no config mmdet::no/such.py'),
        ('nowhere::no/such.py', "'nowhere'"),
        ('no.py', 'there is no config file no.py'),
    ],
)
def test_refusals_write_nothing(base, message, tmp_path):
    out = tmp_path / 'my.py'
    with pytest.raises(UserError, match=message):
        swap_backbone(base, 'clustr_t', out)
    assert not list(tmp_path.iterdir())


def test_model_that_does_not_run_is_not_written(tmp_path, monkeypatch):
    def run_once(cfg):
        if cfg.model.backbone.type == 'ClusTR':
            raise RuntimeError('shapes')

    monkeypatch.setattr(swapping, 'run_once', run_once)
    base = 'mmpretrain::resnet/resnet18_8xb32_in1k.py'
    with pytest.raises(UserError, match='nothing was written.*shapes'):
        swap_backbone(base, 'clustr_t', tmp_path / 'my.py')
    assert not list(tmp_path.iterdir())


def test_a_config_that_never_worked(tmp_path):
    """Here, as its neck is fed maps and looks for vectors."""
    base = tmp_path / 'base.py'
    original = find_config('mmpretrain::resnet/resnet18_8xb32_in1k.py')
    base.write_text(
        f'_base_ = {str(original)!r}\n'
        "model = dict(neck=dict(_delete_=True, type='LinearNeck', "
        'in_channels=512, out_channels=8))\n'
    )
    with pytest.raises(StockError, match='own backbone either: Runtime'):
        swap_backbone(str(base), 'clustr_t', tmp_path / 'my.py')
    assert [path.name for path in tmp_path.iterdir()] == ['base.py']


def test_base_that_inherits_from_ours(tmp_path, monkeypatch):
    """By MMEngine's syntax, known with the package, which marks what is so
    inherited as of a toolbox that has all of its types."""
    pytest.importorskip('mmpretrain')
    installed = tmp_path / 'installed'
    (installed / '.mim').mkdir(parents=True)
    for name in ('configs', 'model-index.yml'):
        (installed / '.mim' / name).symlink_to(ROOT / name)
    monkeypatch.setattr(
        'mmengine.config.config.get_installed_path', lambda name: installed
    )
    base = tmp_path / 'mine.py'
    base.write_text(f'_base_ = {"clustr_mm::" + EVIT!r}\n')
    assert Config.fromfile(base).model._scope_ == 'clustr_mm'
    swap_backbone(str(base), 'clustr_t', tmp_path / 'my.py')
    cfg = configs.read(tmp_path / 'my.py')
    assert (cfg.model.type, cfg.model.backbone.type) == (
        'ImageClassifier',
        'ClusTR',
    )
    assert '_scope_' not in cfg.model


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


def test_dry_run_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = 'mmpretrain::resnet/resnet18_8xb32_in1k.py'
    notes = swap_backbone(base, 'evit_s_k07', None)
    assert 'model.head.in_channels: 512 -> 384' in notes
    assert not list(tmp_path.iterdir())


def config(scope='mmpretrain', **model):
    return Config(dict(default_scope=scope, model=dict(model)))


def test_size_of_the_old_backbone():
    """An MLP-Mixer takes images of no size but its own."""
    mixer = dict(type='MlpMixer', arch='small', img_size=96, patch_size=16)
    assert outputs_of(config(backbone=mixer)) == [Output(512, None)]


def test_a_backbone_that_is_told_more():
    told = dict(type='MAEViT', arch='b', img_size=32)
    with pytest.raises(UserError, match=r'more than a picture \(mask\)'):
        outputs_of(config(backbone=told))


def test_assumed_outputs(tmp_path):
    """Of a backbone that nobody can build here."""
    base, out = tmp_path / 'base.py', tmp_path / 'my.py'
    original = find_config(SWAPS[6][0])
    base.write_text(
        f'_base_ = {str(original)!r}\n'
        "model = dict(backbone=dict(_delete_=True, type='NotThere'))\n"
    )
    with pytest.raises(StockError, match='NotThere.*--assume'):
        swap_backbone(str(base), 'clustr_t', out)
    notes = swap_backbone(str(base), 'clustr_t', out, assume='2048,32')
    assert 'model.head.in_channels: 2048 -> 512' in notes
    assert parse(' 64,4 128,8') == [Output(64, 4), Output(128, 8)]
    assert parse('384') == [Output(384, None)]
    for wrong in ('', '64,4 128', '64,0', '64,4,2', 'x'):
        with pytest.raises(UserError, match='--assume'):
            parse(wrong)


@pytest.mark.parametrize(
    ('base', 'scope'),
    [
        ('mmdet::legacy_1.x/retinanet_r50_fpn_1x_coco_v1.py', 'mmdet'),
        # A classifier of MMPretrain, of which MMEngine would ask MMDetection.
        (
            'mmdet::rtmdet/classification/cspnext-l_8xb256-rsb-a1-600e_in1k.py',
            'mmpretrain',
        ),
    ],
)
def test_what_mmengine_does_not_find_by_its_short_name(base, scope):
    path = find_config(base)
    name = swapping._base_name(swapping.Swap(), base, path, path, scope)
    assert name == str(path)


def test_which_maps_a_part_looks_at():
    old = [Output(2 ** (8 + i), 2 ** (2 + i)) for i in range(4)]
    new = [Output(2 ** (6 + i), 2 ** (2 + i)) for i in range(4)]
    channels = Maps(old, new).channels
    assert channels(dict(in_channels=[256, 512, 1024, 2048])) == [
        *(64, 128, 256, 512)
    ]
    # YOLOv3's neck begins with the deepest; FastFCN's leaves out the first,
    # and takes a tuple alone.
    assert channels(dict(in_channels=[2048, 1024, 512])) == [512, 256, 128]
    assert channels(dict(in_channels=(512, 1024, 2048))) == (128, 256, 512)
    assert channels(dict(in_channels=1024)) == 256
    assert channels(dict(in_channels=2048, in_index=3)) == 512
    # A plain ViT's maps are all alike: only their order tells.
    alike = Maps([Output(384, 16)] * 4, new).channels
    assert alike(dict(in_channels=[384, 384])) == [64, 128]
    assert alike(dict(in_channels=384)) == 512


def test_heads_behind_a_neck_that_hands_on_maps():
    """JPU joins all maps for one head, and gives another the second."""
    cfg = Config.fromfile(find_config(FASTFCN))
    cfg.model.neck.mid_channels = 8  # of which it makes four times as many
    cfg.model.decode_head.in_channels = 32
    model = plan(cfg, preset('clustr_t')).settings['model']
    assert model['neck']['in_channels'] == (128, 256, 512)
    assert model['auxiliary_head'] == dict(in_channels=256)
    assert 'decode_head' not in model


def test_heads_behind_a_neck_that_leaves_the_channels():
    """RTMW's makes maps as wide as it gets them."""
    backbone = dict(type='ResNet', depth=50, out_indices=(1, 2, 3))
    neck = dict(
        type='CSPNeXtPAFPN', in_channels=[512, 1024, 2048], out_channels=None
    )
    head = dict(type='RTMWHead', in_channels=2048, out_channels=9)
    cfg = config('mmpose', backbone=backbone, neck=neck, head=head)
    model = plan(cfg, preset('clustr_t')).settings['model']
    assert model['neck'] == dict(in_channels=[128, 256, 512])
    assert model['head'] == dict(in_channels=512)
    cfg.model.neck.out_channels = 64
    cfg.model.head.in_channels = 64
    assert 'head' not in plan(cfg, preset('clustr_t')).settings['model']


RESNET = dict(type='ResNet', depth=18)


def test_what_takes_the_place_of_nothing_deletes_nothing():
    head = dict(type='LinearClsHead', in_channels=384, num_classes=9)
    vit = dict(type='VisionTransformer', arch='deit-small')
    pooling = dict(type='GlobalAveragePooling')
    for old in ({}, dict(neck=None), dict(neck=dict(pooling, dim=1))):
        cfg = config(backbone=vit, head=head, **old)
        model = plan(cfg, preset('clustr_t')).settings['model']
        # MMEngine's merge takes the mark where the key is, and only there.
        cfg.merge_from_dict(dict(model=dict(neck=model['neck'])))
        assert cfg.model.neck == pooling


def test_detectors_keep_their_strides():
    """Anchors would lie elsewhere, and nobody would notice."""
    neck = dict(type='DilatedEncoder', in_channels=512, out_channels=512)
    backbone = dict(RESNET, out_indices=(3,))
    cfg = config('mmdet', backbone=backbone, neck=neck, bbox_head={})
    for name, strides in dict(evit_s_k07=[32], clustr_t=None).items():
        model = plan(cfg, preset(name)).settings['model']
        if strides:
            assert model['neck'][0]['strides'] == strides
        else:
            assert model['backbone']['out_indices'] == (3,)
            assert model['neck'] == dict(in_channels=512)


@pytest.mark.parametrize(
    'name', ['clustr/retinanet_clustr_t_coco', 'clustr/fpn_clustr_t_ade20k']
)
def test_options_are_those_of_our_own_configs(name):
    """What a large image needs, too, where its detector has large ones."""
    cfg = configs.read(ROOT / f'configs/{name}.py')
    preset = configs.read_any(presets()['clustr_t'])['clustr_t'].to_dict()
    old = [Output(64 * 2**i, 4 * 2**i) for i in range(4)]
    found = plan(cfg, preset, old).settings['model']['backbone']
    own = cfg.model.backbone
    for option in ('window', 'reuse'):
        assert found.get(option) == own.get(option)
    assert ('window' in own) == ('coco' in name)


def test_weights_of_the_whole_old_model_are_dropped():
    weights = dict(type='Pretrained', checkpoint='old.pth')
    head = dict(type='LinearClsHead', in_channels=512, num_classes=9)
    neck = dict(type='GlobalAveragePooling')
    cfg = config(backbone=RESNET, neck=neck, head=head, init_cfg=weights)
    swap = plan(cfg, preset('clustr_t'))
    assert swap.settings['model']['init_cfg'] is None
    assert any('init_cfg: dropped' in note for note in swap.notes)


def test_reasons():
    """Whose the fault is."""
    with pytest.raises(UserError, match='has no model.backbone'):
        plan(config(type='SORT'), preset('clustr_t'))
    cfg = Config(dict(model=dict(type='X', backbone=RESNET)))
    with pytest.raises(StockError, match='default_scope'):
        plan(cfg, preset('clustr_t'))


def test_a_neck_that_joins_all_maps():
    """HRNetV2's, whose 270 channels are the sum of four maps'."""
    backbone = dict(RESNET, depth=50, out_indices=(0, 1, 2, 3))
    neck = dict(type='FeatureMapProcessor', concat=True)
    head = dict(type='HeatmapHead', in_channels=3840, out_channels=9)
    cfg = config('mmpose', backbone=backbone, neck=neck, head=head)
    model = plan(cfg, preset('clustr_s')).settings['model']
    assert model['head']['in_channels'] == 64 + 128 + 256 + 512
    model = plan(cfg, preset('evit_s_k07')).settings['model']
    # MMPose takes no list of necks.
    assert model['neck']['type'] == 'NeckChain'
    pyramid, joined = model['neck']['necks']
    assert pyramid['strides'] == [4, 8, 16, 32]
    assert joined == neck
    assert model['head'] == dict(in_channels=4 * 256)


@slow
def test_a_model_that_may_not_predict_by_random_weights():
    """QueryInst draws no masks of boxes that lie beyond the picture."""
    base = 'mmdet::queryinst/queryinst_r50_fpn_1x_coco.py'
    notes = swap_backbone(base, 'clustr_t', None)
    assert any('model.neck: in_channels' in note for note in notes)


@pytest.mark.skipif(
    os.environ.get('CLUSTR_MM_STACK') == 'upstream',
    reason='other releases of the toolboxes come with other configs',
)
def test_page_says_what_was_swept():
    names = sweep.stock_configs()
    assert len(names) == len(set(names)) > 1000
    page = sweep.PAGE.read_text()
    assert sweep.with_results(page) == page


@slow
def test_sweep_goes_on(tmp_path, monkeypatch):
    """One that is swapped, one that cannot be, and one that takes too long."""
    names = [
        'mmpretrain::resnet/resnet18_8xb32_in1k.py',
        'mmdet::ssd/ssd300_coco.py',
        'mmdet::detr/detr_r50_8xb2-150e_coco.py',
    ]
    results = {}
    sweep.sweep(names[:2], results, 'clustr_t', tmp_path)
    monkeypatch.setattr(sweep, 'SECONDS', 1)
    sweep.sweep(names[2:], results, 'clustr_t', tmp_path)
    found = sweep.results_of('clustr_t', tmp_path)
    assert [found[name]['outcome'] for name in names] == [
        *(sweep.SWAPPED, sweep.REFUSED, sweep.FAILED)
    ]
    assert found[names[2]]['reason'] == 'more than 1 seconds of a core'
