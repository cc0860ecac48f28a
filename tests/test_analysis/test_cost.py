import json

import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config
from torch import nn

import clustr_mm.backbones  # noqa: F401
from clustr_mm.analysis.cost import cost_as_dict, count_macs, format_cost
from clustr_mm.analysis.models import (
    build_model,
    example_inputs,
    read_config,
    usual_size,
)
from clustr_mm.errors import UserError
from clustr_mm.registry import MODELS
from clustr_mm.tokens.kmeans import kmeans, kmedoids
from tests.runs import run_tool
from tests.tiny_models import vit_arch

TOOL = 'get_flops.py'


def macs_of(model, *args, **kwargs):
    """What was counted, by kind, without the kinds that are zero."""
    counted = count_macs(model, *args, **kwargs).by_kind()
    return {kind: number for kind, number in counted.items() if number}


@pytest.mark.parametrize(
    ('layer', 'shape', 'expected'),
    [
        (nn.Linear(5, 7), (2, 3, 5), 2 * 3 * 5 * 7),
        (nn.Linear(5, 7, bias=False), (4, 5), 4 * 5 * 7),
        (nn.Conv2d(4, 6, 3, padding=1), (2, 4, 8, 9), 2 * 72 * 6 * 4 * 9),
        (nn.Conv2d(4, 8, 3, groups=4), (1, 4, 8, 8), 36 * 8 * 9),
        (nn.Conv1d(4, 6, 2, 2), (1, 4, 10), 5 * 6 * 4 * 2),
        (nn.ConvTranspose2d(4, 6, 2, 2), (1, 4, 5, 5), 25 * 4 * 6 * 4),
    ],
)
def test_layers(layer, shape, expected):
    assert macs_of(layer, shape) == dict(layers=expected)
    cost = count_macs(layer, torch.randn(shape))
    assert cost.params == sum(p.numel() for p in layer.parameters())


@pytest.mark.parametrize(
    ('function', 'shapes', 'expected'),
    [
        (torch.matmul, [(3, 4, 5), (3, 5, 6)], 3 * 4 * 5 * 6),
        (torch.matmul, [(4, 5), (5,)], 20),
        (torch.cdist, [(2, 7, 3), (2, 9, 3)], 2 * 7 * 9 * 3),
        (torch.cdist, [(2, 70, 3), (2, 90, 3)], 2 * 70 * 90 * 3),
        (torch.baddbmm, [(2, 1, 9), (2, 7, 3), (2, 3, 9)], 2 * 7 * 9 * 3),
        (torch.addmm, [(9,), (7, 3), (3, 9)], 7 * 9 * 3),
        (
            lambda x, y: torch.einsum('bnc,bmc->bnm', x, y),
            [(2, 7, 3), (2, 9, 3)],
            2 * 7 * 9 * 3,
        ),
        (lambda x: F.max_pool2d(x, 3, 2), [(1, 2, 7, 7)], 2 * 9 * 9),
        (lambda x: F.avg_pool1d(x, 3, 2), [(1, 2, 7)], 2 * 3 * 3),
        (
            lambda x: x.new_zeros(3, 5).index_add(0, torch.tensor([0, 2]), x),
            [(2, 5)],
            10,
        ),
        (torch.add, [(2, 5), (2, 5)], 0),
    ],
)
def test_functions(function, shapes, expected):
    inputs = [torch.randn(shape) for shape in shapes]
    assert count_macs(function, *inputs).macs == expected


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('masked', [False, True])
def test_fused_attention(dtype, masked):
    query = torch.randn(2, 3, 11, 8, dtype=dtype)
    key, value = query.new_ones(2, 3, 5, 8), query.new_ones(2, 3, 5, 4)
    mask = query.new_zeros(11, 5) if masked else None

    def attend():
        return F.scaled_dot_product_attention(query, key, value, mask)

    assert count_macs(attend).macs == 2 * 3 * 11 * 5 * (8 + 4)
    with torch.inference_mode():
        assert count_macs(attend).macs == 2 * 3 * 11 * 5 * (8 + 4)


@pytest.mark.parametrize('batch_first', [False, True])
def test_layers_of_pytorch(batch_first):
    """They have fused kernels that hide products."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
    shape = (3, 5, 8) if batch_first else (5, 3, 8)
    expected = dict(
        layers=15 * (4 * 8 * 8 + 2 * 8 * 16), attention=2 * 3 * 25 * 8
    )
    assert macs_of(layer, shape) == expected
    attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    x = torch.randn(shape)
    expected['layers'] = 15 * 4 * 8 * 8
    assert macs_of(attention, x, x, x) == expected
    assert macs_of(attention, x, x, x, need_weights=False) == expected


def test_vit_by_hand():
    """A block of N tokens: 12 N C^2 for layers, 2 N^2 C for attention."""
    arch = vit_arch(32, 2, 4)
    model = MODELS.build(dict(type='ThinViT', arch=arch, img_size=64))
    cost = count_macs(model, (2, 3, 64, 64))
    tokens = 4 * 4 + 1
    block = dict(
        layers=2 * tokens * 12 * 32 * 32, attention=4 * tokens**2 * 32
    )
    blocks = cost.by_block()
    for i in range(2):
        assert dict(blocks[f'blocks.{i}'].macs) == block
        assert blocks[f'blocks.{i}'].tokens == tokens
    patches = 2 * 16 * 3 * 16 * 16 * 32
    assert blocks['patch_embed'].total() == patches
    assert cost.macs == patches + 2 * sum(block.values())
    assert cost.part('blocks').total() == 2 * sum(block.values())
    assert cost.part('block').total() == 0
    assert cost.params == sum(p.numel() for p in model.parameters())


def test_clustering_by_hand():
    x, init = torch.randn(2, 20, 8), torch.arange(5).repeat(2, 1)
    # Distances of all tokens to all centers and a mean, each time, whether or
    # not the last ones change anything.
    once = 2 * 20 * 5 * 8 + 2 * 20 * (8 + 1)
    assert macs_of(kmeans, x, init, iters=30) == dict(clustering=30 * once)
    # All distances; a sum of rows of what they are at most and at least, each
    # time.
    cost = macs_of(kmedoids, x, init, iters=30)
    once = 2 * 20 * 2 * 20
    assert cost == dict(clustering=2 * 20 * 20 * 8 + 30 * once)


@pytest.mark.parametrize(
    'backbone',
    [
        dict(type='ClusTR', arch='tiny'),
        dict(type='TokenPoolingDeiT', arch='deit-small', method='kmeans'),
        dict(type='EViT', arch='deit-tiny'),
    ],
)
def test_clustering_is_told_apart(backbone):
    """Thinning changes the tokens, and is the only clustering there is."""
    macs = macs_of(MODELS.build(backbone), (1, 3, 224, 224))
    assert set(macs) == {'layers', 'attention', 'clustering'}


def test_tokens_after_each_block():
    backbone = dict(type='EViT', arch='deit-tiny', keep=0.5)
    blocks = count_macs(MODELS.build(backbone), (1, 3, 224, 224)).by_block()
    tokens = [blocks[f'blocks.{i}'].tokens for i in range(12)]
    # The class token, the patches that are kept and the fused one.
    assert tokens == [197] * 3 + [100] * 3 + [52] * 3 + [28] * 3


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.unused = nn.Linear(4, 4)

    def forward(self, x, fail=False):
        assert not self.training
        if fail:
            raise RuntimeError('on purpose')
        return self.second(self.first(x)) @ x.T


def test_shared_and_unused_parameters():
    cost = count_macs(TwoHeads(), (3, 4))
    assert cost.params == 16 + 4 + 4 + 20
    assert cost.by_kind()['layers'] == 2 * 3 * 16
    assert cost.by_kind()['rest'] == 3 * 3 * 4
    assert cost.part('unused').params == 20


def test_leaves_no_trace():
    model = TwoHeads().train()
    model.unused.eval()
    with pytest.raises(RuntimeError, match='on purpose'):
        count_macs(model, torch.randn(3, 4), fail=True)
    assert model.training
    assert not model.unused.training
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks
    assert count_macs(model, (3, 4)).macs == 2 * 3 * 16 + 3 * 3 * 4


TOY_HEADS = dict(
    mmpretrain=dict(
        type='ImageClassifier',
        neck=dict(type='GlobalAveragePooling'),
        head=dict(type='LinearClsHead', num_classes=10, in_channels=512),
    ),
    mmseg=dict(
        type='EncoderDecoder',
        decode_head=dict(
            type='FCNHead',
            in_channels=512,
            channels=16,
            num_convs=1,
            concat_input=False,
            num_classes=5,
            norm_cfg=dict(type='SyncBN'),
        ),
        test_cfg=dict(mode='whole'),
    ),
    mmpose=dict(
        type='TopdownPoseEstimator',
        head=dict(
            type='HeatmapHead',
            in_channels=512,
            out_channels=7,
            deconv_out_channels=None,
            deconv_kernel_sizes=None,
            loss=dict(type='KeypointMSELoss'),
            decoder=dict(
                type='UDPHeatmap',
                input_size=(64, 96),
                heatmap_size=(2, 3),
                sigma=2,
            ),
        ),
        test_cfg=dict(flip_test=True),
    ),
    mmdet=dict(
        type='RetinaNet',
        neck=dict(type='FPN', in_channels=[512], out_channels=16, num_outs=1),
        bbox_head=dict(
            type='RetinaHead',
            num_classes=3,
            in_channels=16,
            stacked_convs=1,
            feat_channels=16,
            anchor_generator=dict(
                type='AnchorGenerator',
                scales=[8],
                ratios=[1.0],
                strides=[32],
            ),
            bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
        ),
        test_cfg=dict(
            nms_pre=9,
            score_thr=0,
            max_per_img=5,
            nms=dict(type='nms', iou_threshold=0.5),
        ),
    ),
)


@pytest.mark.parametrize('scope', TOY_HEADS)
@pytest.mark.parametrize('mode', ['tensor', 'predict'])
def test_models_of_all_toolboxes(scope, mode):
    pytest.importorskip(scope)
    backbone = dict(type='ClusTR', arch='tiny', out_indices=(3,))
    model = dict(TOY_HEADS[scope], backbone=backbone)
    cfg = Config(dict(model=model, default_scope=scope))
    model = build_model(cfg)
    inputs = example_inputs(cfg, 2, (96, 64))
    cost = count_macs(model, **inputs, mode=mode)
    alone = count_macs(model.backbone, inputs['inputs'])
    flips = 2 if (scope, mode) == ('mmpose', 'predict') else 1
    layers = cost.part('backbone').total(['layers'])
    assert layers == flips * alone.by_kind()['layers'] > 0
    assert cost.params == sum(p.numel() for p in model.parameters())
    assert cost.paper_macs == cost.by_kind()['layers'] > layers
    text = format_cost(cost)
    assert 'backbone.stages.2' in text
    assert f'{cost.params / 1e6:.3f}' in text
    assert json.loads(json.dumps(cost_as_dict(cost)))['macs']['all'] == (
        cost.macs
    )


def test_operators_of_mmcv_are_named():
    ops = pytest.importorskip('mmcv.ops')
    layer = ops.ModulatedDeformConv2dPack(4, 4, 3, padding=1)
    cost = count_macs(layer, (1, 4, 8, 8))
    assert cost.uncounted == ('ModulatedDeformConv2dPack',)
    assert 'Not counted: ModulatedDeformConv2dPack' in format_cost(cost)


@pytest.mark.parametrize(
    ('settings', 'size'),
    [
        (dict(default_scope='mmdet'), (800, 1344)),
        (dict(codec=dict(input_size=(192, 256))), (256, 192)),
        (
            dict(
                default_scope='mmdet',
                test_pipeline=[dict(type='Resize', scale=(1333, 800))],
            ),
            (800, 1344),
        ),
        (
            dict(
                default_scope='mmdet',
                test_pipeline=[dict(type='Resize', scale=(1333, 800))],
                test_dataloader=dict(
                    dataset=dict(
                        pipeline=[dict(type='Resize', scale=(96, 96))]
                    )
                ),
            ),
            (96, 96),
        ),
        (
            dict(test_pipeline=[dict(type='CenterCrop', crop_size=384)]),
            (384, 384),
        ),
        (dict(model=dict(data_preprocessor=dict(size=(64, 32)))), (64, 32)),
    ],
)
def test_usual_size(settings, size):
    cfg = Config(dict(dict(model=dict(type='ClusTR')), **settings))
    assert usual_size(cfg) == size


def test_config_that_is_none(tmp_path):
    with pytest.raises(UserError, match='no config file'):
        read_config(str(tmp_path / 'none.py'))
    path = tmp_path / 'empty.py'
    path.write_text('optimizer = dict()')
    with pytest.raises(UserError, match='describes no model'):
        read_config(str(path))


def test_tool(tmp_path):
    pytest.importorskip('mmpretrain')
    backbone = dict(type='ClusTR', arch='tiny', out_indices=(3,))
    model = dict(TOY_HEADS['mmpretrain'], backbone=backbone)
    settings = dict(
        default_scope='mmpretrain',
        custom_imports=dict(imports=['clustr_mm']),
        model=model,
    )
    path = tmp_path / 'config.py'
    Config(settings).dump(path)
    out = run_tool(TOOL, path, '--shape', 64, '--json', cwd=tmp_path)
    found = json.loads(out[out.index('{') :])
    assert found['shape'] == [64, 64]
    cost = count_macs(MODELS.build(backbone), (1, 3, 64, 64))
    assert found['backbone']['macs']['layers'] == cost.by_kind()['layers']
    assert found['params'] == cost.params + 5130

    options = ('--cfg-options', 'model.backbone.arch=small')
    out = run_tool(TOOL, path, *options, cwd=tmp_path)
    assert 'one image of 224 x 224' in out
    assert '22.194' in out

    out = run_tool(TOOL, tmp_path / 'none.py', cwd=tmp_path, ok=False)
    assert 'there is no config file' in out
    assert 'Traceback' not in out
