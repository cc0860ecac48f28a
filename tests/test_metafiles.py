"""What MIM reads: model-index.yml and the metafiles of the configs."""

from collections import Counter

import modelindex
import pytest
import yaml

from clustr_mm.analysis.cost import count_macs
from clustr_mm.analysis.models import (
    build_model,
    example_inputs,
    read_config,
    usual_size,
)
from clustr_mm.checkpoints.published import table
from tests.runs import ROOT

METAFILES = yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']


@pytest.fixture(scope='module')
def index():
    return modelindex.load(str(ROOT / 'model-index.yml'))


def test_index_names_every_metafile():
    folders = {
        path.parts[-2]
        for path in (ROOT / 'configs').glob('*/*.py')
        if path.parts[-2] not in ('_base_', 'quickstart', 'study')
    }
    assert sorted(METAFILES) == sorted(
        f'configs/{folder}/metafile.yml' for folder in folders
    )


def test_index_loads(index):
    index.build_models_with_collections()
    assert not index.check_errors
    assert len(index.collections) == len(METAFILES)
    collections = {collection.name for collection in index.collections}
    for model in index.models:
        assert not model.check_errors
        assert model.in_collection in collections


def test_results_are_the_published_ones(index):
    """What nobody has trained has neither weights nor results."""
    published = {
        f'configs/{weights.config}': weights
        for weights in table().values()
        if not any(key.startswith('model.') for key in weights.options)
    }
    found = set()
    for model in index.models:
        weights = published.get(model.config)
        if weights is None:
            assert not model.weights
            assert not model.results
            continue
        found.add(model.config)
        [result] = model.results
        assert result.metrics == {'Top 1 Accuracy': weights.top1}
        url = weights.urls[0]
        assert model.data['Converted From'] == dict(
            Weights=url, Code=weights.code
        )
        # MIM saves a file under the name that the address ends with.
        plain = url.endswith(('.pth', '.pth.tar'))
        assert model.weights == (url if plain else None)
    assert found == published.keys() - {'configs/None'}


def test_what_mim_downloads_is_found_by_name(index):
    """`mim download --dest DIR` saves a file under what follows the last
    slash of its address, and reads the config below the package's .mim."""
    downloaded = [model for model in index.models if model.weights]
    assert len(downloaded) > 10
    for model in downloaded:
        name = model.weights.split(',')[0].split('/')[-1]
        config = model.config.removeprefix('configs/')
        own = [w.file for w in table().values() if w.config == config]
        assert name in own
        assert (ROOT / model.config).is_file()


@pytest.mark.parametrize('metafile', METAFILES)
def test_configs_are_listed_once(metafile, index):
    folder = (ROOT / metafile).parent
    prefix = f'configs/{folder.name}/'
    listed = Counter(
        model.config
        for model in index.models
        if model.config.startswith(prefix)
    )
    there = Counter(
        str(path.relative_to(ROOT)) for path in folder.rglob('*.py')
    )
    assert listed == there, f'{metafile} is to list each config once'


def test_names_are_those_of_the_files(index):
    names = [model.name for model in index.models]
    assert len(set(names)) == len(names)
    for model in index.models:
        assert model.config.endswith(f'/{model.name}.py')


@pytest.mark.parametrize(
    'name',
    [
        'clustr_t_imagenet',
        'hvt_s4_160px_cifar100',
        'pose_hvt_s1_wholebody',
        'token_pooling_s_l3_imagenet',
        'tome_s_r13_imagenet',
        'distill_evit_s14_k07_coco',
        'dynamicvit_lvvit_s_k05_imagenet',
        pytest.param('fpn_clustr_s_ade20k', marks=pytest.mark.slow),
        pytest.param('mask_rcnn_evit_s_k07_coco', marks=pytest.mark.slow),
        pytest.param('retinanet_clustr_s_coco', marks=pytest.mark.slow),
    ],
)
def test_sizes_and_costs(name, index):
    [listed] = [model for model in index.models if model.name == name]
    cfg = read_config(str(ROOT / listed.config))
    model = build_model(cfg)
    cost = count_macs(
        model, **example_inputs(cfg, 1, usual_size(cfg)), mode='tensor'
    )
    listed = listed.metadata.data
    assert listed['Parameters'] == sum(p.numel() for p in model.parameters())
    # How often clusters are improved depends on the picture.
    assert listed['FLOPs'] == pytest.approx(cost.macs, rel=0.01)
