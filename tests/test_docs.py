"""The README names only what exists."""

import re

from tests.runs import ROOT

README = (ROOT / 'README.md').read_text()


def test_files_exist():
    paths = re.findall(r'\b(?:tools|configs|docs)/[\w./-]+\w', README)
    assert len(paths) >= 8
    assert not [p for p in paths if not (ROOT / p).exists()]


def test_make_targets_exist():
    makefile = (ROOT / 'Makefile').read_text()
    targets = re.findall(r'make (?:-s )?([a-z-]+)', README)
    assert {'quickstart', 'test'} <= set(targets)
    for target in targets:
        assert f'\n{target}:' in makefile


def test_variables_exist():
    setup = (ROOT / 'tools/setup_env.py').read_text()
    for variable in re.findall(r'CLUSTR_MM_[A-Z_]+', README):
        assert variable in setup
