"""Times of the arms of a claim, in one run."""

import json

import torch

from clustr_mm.study import timing
from clustr_mm.study.claims import ARMS, Claim
from tests.runs import ROOT


def test_a_claim_is_timed(tmp_path, monkeypatch):
    arms = ['vit', 'kmeans_half']
    claim = Claim('Title', 'Says', arms, checks=[], deviation=1)
    monkeypatch.setattr(timing, 'BATCH', 1)
    monkeypatch.setitem(timing.CLAIMS, 'short', claim)
    path = tmp_path / 'times.json'
    path.write_text(json.dumps(dict(other=1)))
    timing.measure(['short'], ROOT / 'configs', path, rounds=3)
    found = json.loads(path.read_text())
    assert found['other'] == 1
    timed = found['short']
    assert list(timed['speedup']) == arms
    assert timed['first'] == arms[0]
    assert timed['speedup'][arms[0]] == [1, 1, 1]
    assert timed['milliseconds'] > 0
    assert timed['threads'] == torch.get_num_threads()
    for median, low, high in timed['speedup'].values():
        assert 0 < low <= median <= high


def test_pictures_have_the_size_that_the_arm_gets():
    for arm, side in (('vit', 32), ('exact_boxes', 400), ('reuse_fpn', 128)):
        cfg = timing.configs.read(ROOT / 'configs/study' / ARMS[arm].config)
        model, image = timing.backbone_call(cfg, 2)
        assert image.shape == (2, 3, side, side)
        assert model.__class__.__name__ == cfg.model.backbone.type
