"""Verdicts, from the definitions of Student's interval; a page from results
alone."""

import json
import math
from copy import deepcopy

import pytest
import torch
from mmengine.config import Config
from scipy import stats

from clustr_mm import configs
from clustr_mm.analysis.cost import count_macs
from clustr_mm.backbones.clustr import ClusterAttention
from clustr_mm.study import report
from clustr_mm.study.claims import (
    ARMS,
    CLAIMS,
    ORDER,
    Check,
    expected_hours,
)
from clustr_mm.study.estimates import Estimate, half_width
from clustr_mm.study.report import HOLDS, NOT, OPEN, verdict
from clustr_mm.study.timing import TIMES, backbone_call
from tests.runs import ROOT


@pytest.mark.parametrize('number', range(2, 12))
def test_quantiles(number):
    t = stats.t.ppf(0.975, number - 1)
    assert half_width(1, number) * number**0.5 == pytest.approx(t, abs=6e-4)


def test_a_paired_interval():
    """SciPy's, of the differences of three seeds."""
    better, than = [71.2, 69.9, 70.8], [70.1, 69.5, 70.4]
    low, high = stats.ttest_rel(better, than).confidence_interval(0.95)
    found = Estimate.of([b - t for b, t in zip(better, than)])
    assert found.low == pytest.approx(low, abs=1e-3)
    assert found.high == pytest.approx(high, abs=1e-3)


def test_an_interval_by_hand():
    # Mean 2, deviation 1, three numbers: 4.303 / sqrt(3).
    found = Estimate.of([1.0, 2.0, 3.0])
    assert found.mean == 2
    assert found.half == pytest.approx(2.4843, abs=1e-3)
    assert math.isinf(Estimate.of([1.0]).half)


@pytest.mark.parametrize(
    ('differences', 'margin', 'expected'),
    [
        ([2.0, 2.1, 2.2], 0.0, HOLDS),
        ([-2.0, -2.1, -2.2], 0.0, NOT),
        ([0.1, 0.11, 0.12], 0.0, HOLDS),
        # Certainly too small to matter.
        ([0.1, -0.1, 0.05], 0.0, NOT),
        ([3.0, -1.0, 2.0], 0.0, OPEN),
        ([5.0], 0.0, OPEN),
        # Hardly worse.
        ([-0.3, -0.2, -0.25], 1.0, HOLDS),
        ([-3.0, -3.1, -2.9], 1.0, NOT),
        ([-1.5, -0.5, -1.0], 1.0, OPEN),
    ],
)
def test_verdict(differences, margin, expected):
    check = Check('a', 'b', 'a beats b', margin)
    assert verdict(check, Estimate.of(differences)) == expected


def test_claims_name_arms_that_are_there():
    for claim in CLAIMS.values():
        assert set(claim.arms) <= set(ARMS)
        assert len(claim.seeds) >= 3
        for check in claim.checks:
            assert {check.better, check.than} <= set(claim.arms)
    used = {arm for claim in CLAIMS.values() for arm in claim.arms}
    started = {start for a in ARMS.values() for start in a.starts.values()}
    assert set(ARMS) <= used | started
    for arm in ARMS.values():
        assert arm.trained or len(arm.starts) == 1


def test_few_keys_are_fewer_than_all():
    """Otherwise k-NN attention is spatial reduction's, and nothing is
    compared."""
    maps = []
    for name in ('spatial_reduction', 'spatial_reduction_knn'):
        arm = ARMS[name]
        cfg = configs.read(ROOT / 'configs/study' / arm.config)
        configs.override(cfg, dict(arm.options))
        torch.manual_seed(0)
        model, images = backbone_call(cfg, batch=1)
        torch.manual_seed(1)
        with torch.no_grad():
            maps.append(model(torch.randn_like(images))[0])
    assert not torch.allclose(*maps)


@pytest.mark.parametrize(
    'name', [name for name in ARMS if name.startswith('one_cluster')]
)
def test_one_cluster_is_one(name, monkeypatch):
    """In every block, at the size that the arm gets."""
    numbers, number = [], ClusterAttention.num_clusters

    def noted(*args):
        numbers.append(number(*args))
        return numbers[-1]

    monkeypatch.setattr(ClusterAttention, 'num_clusters', noted)
    arm = ARMS[name]
    cfg = configs.read(ROOT / 'configs/study' / arm.config, dict(arm.options))
    model, images = backbone_call(cfg, batch=1)
    with torch.no_grad():
        model(images)
    assert len(numbers) >= 4
    assert set(numbers) == {1}


@pytest.mark.parametrize(
    ('claim', 'budgets'),
    [('thinning', 3), ('thinning_dense', 2), ('thinning_masks', 2)],
)
def test_arms_of_a_budget_cost_about_the_same(claim, budgets):
    for budget in range(1, budgets + 1):
        costs = []
        for name in CLAIMS[claim].arms:
            if name.endswith(f'_{budget}'):
                arm = ARMS[name]
                cfg = configs.read(ROOT / 'configs/study' / arm.config)
                configs.override(cfg, dict(arm.options))
                costs.append(count_macs(*backbone_call(cfg, batch=1)).macs)
        assert len(costs) >= 5
        assert max(costs) < 1.15 * min(costs)


def test_the_cheapest_claim_comes_first():
    """Of those that are left, after the one with the first trunk."""
    assert list(CLAIMS) == list(ORDER) == list(expected_hours())
    for i, name in enumerate(ORDER[1:], 1):
        hours = expected_hours()[name]
        for other in ORDER[i:]:
            if_next = expected_hours([*ORDER[:i], other])[other]
            assert hours <= if_next + 0.05
    # By hand: three trunks of three epochs, tested, and 14 arms tested only.
    trunk = 25 + 150_000 / 210 + 10_000 / 210 / 3
    tested = 25 + 10_000 / 210 / 3
    assert expected_hours()['pooling'] == pytest.approx(
        3 * (trunk + 14 * tested) / 3600
    )


def test_a_cosine_ends_with_the_training():
    """One that is shorter than the training would rise again."""
    files = {
        name: Config.fromfile(
            ROOT / 'configs/study' / name, import_custom_modules=False
        )
        for name in {arm.config for arm in ARMS.values()}
    }
    for name, arm in ARMS.items():
        cfg = deepcopy(files[arm.config])
        cfg.merge_from_dict(dict(arm.options))
        cosine = cfg.param_scheduler[1]
        assert cosine.type == 'CosineAnnealingLR'
        assert cosine.T_max == cfg.train_cfg.max_epochs, name


def _result(folder, arm, seed, value):
    path = folder / arm / f'{seed}.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    result = dict(
        arm=arm,
        seed=seed,
        value=value,
        metric='mIoU',
        macs=2_000_000,
    )
    path.write_text(json.dumps(result))


@pytest.fixture
def folder(tmp_path):
    """Results of three arms of a claim, of two of three seeds for one."""
    folder = tmp_path / 'study'
    folder.mkdir()
    (folder / 'introduction.md').write_text('Words.\n')
    (folder / 'conclusions.md').write_text('What follows.\n')
    _result(folder, 'exact_boxes', 0, 20.0)
    (folder / 'dials.md').write_text('What was looked at.\n')
    (folder / 'dials_boxes.md').write_text('Too early.\n')
    for seed, value in enumerate((50.0, 51.0, 52.0)):
        _result(folder, 'clusters_two_scales_fpn', seed, value)
        # Paired by seed, however much seeds differ.
        _result(folder, 'reuse_fpn', seed, value - 0.5 - 0.01 * seed)
        if seed:
            _result(folder, 'window_fpn', seed, value - 4 - 0.01 * seed)
    # Trained for others to start from, and never tested.
    _result(folder, 'distilled', 0, None)
    return folder


def says_of(claim):
    return CLAIMS[claim].checks[-1].says


def test_a_page_from_results_alone(folder):
    page = folder.parent / 'study.md'
    report.write(folder, page)
    text = page.read_text()
    claim = CLAIMS['dials']
    parts = ['Words.', '## In short', 'What follows.', '## ' + claim.title]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text.index(says_of('dials')) < text.index('What was looked at.')
    assert 'Too early' not in text
    assert '| arm | mIoU | MACs | seeds |' in text
    assert '| clusters_two_scales_fpn | 51.0 ± 2.5 | 2.0 M | 3 |' in text
    assert '| window_reuse_fpn | not run |  |  |' in text
    says = [check.says for check in claim.checks]
    assert f'| {says[0]} | -0.5 ± 0.0 | {HOLDS} |' in text
    assert f'| {says[1]} | -4.0 ± 0.1 | {NOT} |' in text
    assert f'| {says[2]} |  | not run |' in text
    # In short: one holds, one does not, none is open, two were not run.
    assert f'| {claim.title} | 1 | 1 |  | 2 |' in text
    assert '2 of the 5 arms were not run yet' in text
    assert 'no more than 2 of 3 seeds' in text
    # Claims that were not begun have no table, nor has one of which an arm
    # alone is there, that others share.
    before, after = text.split('## Not run yet')
    other = CLAIMS['dials_boxes'].title
    assert other in after
    assert other not in before
    assert (folder / 'dials.svg').is_file()
    assert not (folder / 'dials_boxes.svg').exists()
    # Written again it is the same.
    picture = (folder / 'dials.svg').read_bytes()
    report.write(folder, page)
    assert page.read_text() == text
    assert (folder / 'dials.svg').read_bytes() == picture


def test_a_page_with_times(folder):
    page = folder.parent / 'study.md'
    timed = dict(
        processor='a processor',
        threads=2,
        torch='2.12',
        batch=8,
        rounds=20,
        first='clusters_two_scales_fpn',
        milliseconds=12.34,
        speedup={
            'clusters_two_scales_fpn': [1.0, 1.0, 1.0],
            'reuse_fpn': [1.5, 1.4, 1.6],
        },
    )
    (folder / TIMES).write_text(json.dumps(dict(dials=timed)))
    report.write(folder, page)
    text = page.read_text()
    assert 'times as fast as clusters_two_scales_fpn' in text
    assert '| reuse_fpn | 50.5 ± 2.5 | 2.0 M | 1.50 | 3 |' in text
    # An arm that came after the timing.
    assert '| window_fpn | 47.5 ± 6.3 | 2.0 M |  | 2 |' in text
    assert 'a processor, 2 threads, torch 2.12' in text
    assert '12.3 ms' in text


def test_a_page_without_any_result(tmp_path):
    page = tmp_path / 'study.md'
    report.write(tmp_path / 'study', page)
    text = page.read_text()
    assert 'In short' not in text
    assert all(claim.title in text for claim in CLAIMS.values())
