"""Exported models answer like the models, whoever runs them."""

import numpy as np
import pytest
import torch
from torch import nn

from clustr_mm.analysis.models import read_config, usual_size
from clustr_mm.backbones.vit import vit_arch
from clustr_mm.errors import UserError
from clustr_mm.export import onnx
from clustr_mm.export.agreement import NUM_IMAGES, OnnxModel, compare
from clustr_mm.export.onnx import (
    Classifier,
    Features,
    export_onnx,
    load_model,
    trace,
)
from clustr_mm.tokens.merging import cluster_sum
from tests import tiny_models
from tests.runs import ROOT, run_tool
from tests.torch_features import exports

CONFIGS = ROOT / 'configs'
EVIT = CONFIGS / 'evit/evit_s_k07_imagenet.py'
SIZE = (32, 32)


def clustr(**options):
    options = dict(reduction=((16, 4), 1), out_indices=(0, 1)) | options
    model = tiny_models.clustr((1, 1), 16, **options)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.xavier_normal_(parameter)
    return model.eval()


def vit(name, **options):
    if 'pooling' in name:
        name = name.removesuffix('-pooling')
        options.update(keep=[64, 20, 9], iters=2)
    return tiny_models.build(name, arch=vit_arch(48, 3, 3), **options)


EARLY_AND_LATE = [
    dict(type='AttentiveTokens', block=0, keep=0.6),
    dict(type='MergedTokens', block=1, merge=0.1),
    dict(type='MergedTokens', block=2, merge=0.1),
]
# Every kind of thinning; those with a map take its way back as well.
MODELS = {
    'clustr': clustr,
    'clustr-dials': lambda: clustr(
        window=5, share=0.8, assign='nearest', reuse=True
    ),
    'clustr-carry': lambda: clustr(carry=True, joint=True, share=0.8),
    'clustr-sra-knn': lambda: clustr(
        attention='sra_knn', reduction=(4, 1), num_keys=9
    ),
    'hvt': lambda: vit('hvt-conv', out_type='featmap'),
    'kmeans': lambda: vit('wkmeans-carry-pooling'),
    'kmedoids': lambda: vit('wkmedoids-pooling', out_type='featmap'),
    'importance': lambda: vit('importance-pooling'),
    'evit': lambda: vit('evit'),
    'evit-drop': lambda: vit('evit-drop', out_type='featmap'),
    'dynamicvit': lambda: vit('dynamicvit', out_type='avg_featmap'),
    'tome': lambda: vit('tome', out_type='featmap'),
    # No map: which of several identical tokens EViT fuses is for the last bit
    # of their attention to say, and shows in a map alone.
    'evit-tome': lambda: vit('evit-tome', reducers=EARLY_AND_LATE),
    'dynamic-lvvit': lambda: vit('dynamic-lvvit', out_type='raw'),
}


@exports
@pytest.mark.parametrize('name', MODELS)
def test_torch_export_takes_any_batch(name):
    model = Features(MODELS[name]())
    program = trace(model, SIZE, dynamic_batch=True).module()
    for batch in (1, 3):
        images = torch.randn(batch, 3, *SIZE)
        with torch.no_grad():
            torch.testing.assert_close(program(images), model(images))


@exports
@pytest.mark.parametrize('model', [clustr, lambda: vit('evit')])
def test_strict_torch_export(model):
    """Dynamo reads through to the clustering, which it else leaves alone."""
    model, images = model(), torch.randn(1, 3, *SIZE)
    with torch.no_grad():
        program = torch.export.export(model, (images,), strict=True)
        torch.testing.assert_close(program.module()(images), model(images))


@exports
def test_clustering_of_an_exported_graph_in_tiles(monkeypatch):
    monkeypatch.setattr(
        'clustr_mm.tokens.density_peaks._EXPORTED_TILE_SIZE', 1000
    )
    model, images = clustr(), torch.randn(2, 3, *SIZE)
    with torch.no_grad():
        found = trace(model, SIZE, dynamic_batch=True).module()(images)
        torch.testing.assert_close(found, model(images))


@pytest.fixture(
    scope='module', params=['clustr', 'kmedoids', 'evit', 'tome', 'evit-tome']
)
def exported(request, tmp_path_factory):
    """A model that knows tokens by content alone, and its ONNX file."""
    model = MODELS[request.param]()
    if hasattr(model, 'pos_embed'):
        nn.init.zeros_(model.pos_embed)
    model = Features(model)
    path = tmp_path_factory.mktemp('onnx') / 'model.onnx'
    export_onnx(model, path, SIZE, dynamic_batch=True)
    return model, OnnxModel(path)


@exports
@pytest.mark.parametrize('batch_size', [1, 4])
def test_onnx_on_random_images(exported, batch_size):
    found = compare(*exported, torch.randn(16, 3, *SIZE), batch_size)
    assert found.agrees.tolist() == [True] * 16
    assert found.difference.max() < 1e-4


@exports
def test_onnx_breaks_ties_alike(exported):
    patch = torch.randn(2, 3, 4, 4)
    several = torch.randn(2, 3, 8, 8)
    images = torch.cat(
        [
            torch.zeros(2, 3, *SIZE),
            torch.full((2, 3, *SIZE), 1.5),
            patch.repeat(1, 1, 8, 8),
            several.repeat(1, 1, 4, 4),
            # The left half repeats, the right half is what it is.
            torch.cat(
                [patch.repeat(1, 1, 8, 4), torch.randn(2, 3, 32, 16)], -1
            ),
        ]
    )
    assert compare(*exported, images, 2).difference.max() < 1e-4


def test_ranking_takes_the_first_of_equals_first():
    from clustr_mm.tokens.compiling import ranking

    score = torch.tensor([[1.0, 2.0, 1.0, 2.0] * 20])
    expected = sorted(range(80), key=lambda i: (-score[0, i], i))
    assert ranking(score)[0].tolist() == expected


class Counting(nn.Module):
    """Answers differently each time, which no graph can."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, images, mode):
        self.calls += 1
        return images.mean((2, 3)) + self.calls


@exports
def test_a_wrong_file_is_not_written(tmp_path):
    out = tmp_path / 'model.onnx'
    out.write_text('what was there')
    with pytest.raises(UserError, match='differs from torch by up to'):
        export_onnx(Classifier(Counting()).eval(), out, (8, 8))
    assert out.read_text() == 'what was there'
    assert list(tmp_path.iterdir()) == [out]


class Sums(nn.Module):
    """Sums of thousands of tokens by cluster, in an order of their own."""

    def forward(self, images, mode):
        tokens = images.flatten(2).mT
        labels = tokens[..., 0].argsort(stable=True) % 7
        return cluster_sum(tokens.repeat(1, 1, 20), labels, 7).flatten(1)


@exports
def test_threads_lose_no_summand(tmp_path):
    model = Classifier(Sums()).eval()
    path = tmp_path / 'model.onnx'
    export_onnx(model, path, (56, 56), dynamic_batch=True)
    found = compare(model, OnnxModel(path), torch.randn(64, 3, 56, 56), 8)
    assert found.agrees.all()


class Step(nn.Module):
    """Its class depends on which side of a step an image lies.

    Args:
        edge (Tensor): Image that lies on the step itself, where the exported
            model and torch fall on different sides.
    """

    def __init__(self, edge):
        super().__init__()
        self.register_buffer('edge', self.score(edge))

    @staticmethod
    def score(images):
        return images[:, 0, 0, 0].double()

    def forward(self, images, mode):
        score = self.score(images)
        is_above = (
            score >= self.edge
            if torch.compiler.is_exporting()
            else score > self.edge
        )
        return torch.stack([score, is_above + score], 1).float()


@exports
def test_an_image_on_a_step_does_not_count(tmp_path):
    images = torch.randn(1, 3, 8, 8, generator=torch.Generator())
    model = Classifier(Step(images)).eval()
    found = export_onnx(model, tmp_path / 'model.onnx', (8, 8))
    assert found == (NUM_IMAGES, 0, 1)


class Noise(nn.Module):
    """A sum whose last digit decides."""

    def forward(self, images, mode):
        last = (images.double().sum((1, 2, 3)) * 1e9).floor() % 2
        if torch.compiler.is_exporting():
            last = 1 - last
        return torch.stack([last, 1 - last], 1).float()


@exports
def test_a_model_of_nothing_but_noise(tmp_path):
    model = Classifier(Noise()).eval()
    with pytest.raises(UserError, match='decide what torch answers to 17 of'):
        export_onnx(model, tmp_path / 'model.onnx', (8, 8))


def test_missing_packages(monkeypatch):
    monkeypatch.setattr(onnx, 'find_spec', {'onnx': 'found'}.get)
    with pytest.raises(UserError, match='pip install onnxscript onnxruntime'):
        onnx.check_packages()


def test_a_torch_that_is_too_old(monkeypatch):
    monkeypatch.delattr(torch.compiler, 'is_exporting', raising=False)
    for tried in (onnx.check_packages, lambda: trace(nn.Identity(), SIZE)):
        with pytest.raises(UserError, match='torch 2.7 or newer is needed'):
            tried()


def test_what_has_no_logits():
    cfg = read_config(CONFIGS / 'evit/mask_rcnn_evit_s_k07_coco.py')
    with pytest.raises(UserError, match='--features'):
        load_model(cfg, None)


@pytest.fixture(scope='module')
def tiny():
    cfg = read_config(EVIT)
    cfg.model.backbone.arch = vit_arch(48, 3, 3)
    cfg.model.head.in_channels = 48
    return cfg


def test_checkpoints_that_do_not_fit(tiny, tmp_path):
    with pytest.raises(UserError, match='there is no checkpoint'):
        load_model(tiny, str(tmp_path / 'missing.pth'))
    path = str(tmp_path / 'some.pth')
    model = load_model(tiny, None).model
    backbone = {
        f'backbone.{k}': v for k, v in model.backbone.named_parameters()
    }
    torch.save({'state_dict': backbone}, path)
    with pytest.raises(UserError, match='lacks 2 weights .* head'):
        load_model(tiny, path)
    features = load_model(tiny, path, features=True).backbone
    assert torch.equal(features.pos_embed, model.backbone.pos_embed)
    torch.save({'head.fc.weight': torch.ones(2, 2)}, path)
    with pytest.raises(UserError, match='of another model'):
        load_model(tiny, path)
    (tmp_path / 'some.pth').write_bytes(b'')
    with pytest.raises(UserError, match='is no checkpoint'):
        load_model(tiny, path)


@exports
def test_tool(tmp_path):
    out = tmp_path / 'new/evit.onnx'
    config = tmp_path / 'config.py'
    config.write_text(
        f'_base_ = {str(CONFIGS / "evit/fpn_evit_s_k07_ade20k.py")!r}\n'
        f'arch = dict(_delete_=True, **{vit_arch(48, 3, 3)})\n'
        'model = dict(backbone=dict(arch=arch))'
    )
    log = run_tool(
        'export_onnx.py',
        *(config, 'none', out),
        *('--features', '--shape', 48, 64),
        *('--cfg-options', 'model.backbone.out_indices=[1,2]'),
        cwd=tmp_path,
    )
    assert 'The weights are random' in log
    assert 'images: [1, 3, 48, 64], RGB, mean [123.675' in log
    assert 'outputs: features_1, features_2' in log

    import onnxruntime

    session = onnxruntime.InferenceSession(out)
    maps = session.run(None, {'images': np.zeros((1, 3, 48, 64), 'f4')})
    assert [fmap.shape for fmap in maps] == [(1, 48, 3, 4)] * 2
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata['channels'] == 'RGB'


@exports
def test_tool_without_a_checkpoint(tmp_path):
    log = run_tool(
        'export_onnx.py', EVIT, 'missing.pth', 'x.onnx', cwd=tmp_path, ok=False
    )
    assert 'error: there is no checkpoint missing.pth' in log
    assert 'Traceback' not in log


def photographs(size):
    """Two, normalised as for ImageNet."""
    from skimage import data
    from skimage.transform import resize

    photos = [resize(p, size) for p in (data.astronaut(), data.coffee())]
    photos = torch.from_numpy(np.stack(photos)).float().permute(0, 3, 1, 2)
    return (photos - 0.45) / 0.226


@exports
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ('name', 'features'),
    [
        ('clustr/clustr_t_imagenet', False),
        ('clustr/clustr_s_imagenet', False),
        ('clustr/clustr_b_imagenet', False),
        ('clustr/mask_rcnn_clustr_t_coco', True),
        ('hvt/hvt_s1_imagenet', False),
        ('hvt/hvt_s4_imagenet', False),
        ('token_pooling/token_pooling_s_l3_imagenet', False),
        ('token_pooling/token_pooling_s_l3_kmeans_imagenet', False),
        ('evit/evit_s_k07_imagenet', False),
        ('evit/fpn_evit_s_k07_ade20k', True),
        ('dynamicvit/dynamicvit_s_k07_imagenet', False),
        ('dynamicvit/dynamicvit_lvvit_s_k07_imagenet', False),
        ('tome/tome_s_r13_imagenet', False),
    ],
)
def test_models_in_full_size(name, features, tmp_path):
    cfg = read_config(CONFIGS / f'{name}.py')
    size = (224, 224) if features else usual_size(cfg)
    torch.manual_seed(2)
    model = load_model(cfg, None, features)
    path = tmp_path / 'model.onnx'
    # It is compared on 16 random images, in batches of 1 and 4.
    found = export_onnx(model, path, size, dynamic_batch=True)
    assert found.num_images == 16
    assert found.difference <= 1e-3
    # With these weights, no rounding error decides about any image.
    assert found.num_undecided == 0
    assert compare(model, OnnxModel(path), photographs(size), 2).agrees.all()
