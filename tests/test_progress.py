"""Loops tell how far they are to people, not to logs."""

import pytest

from clustr_mm.progress import track


@pytest.mark.parametrize('is_terminal', [True, False])
def test_a_bar_is_for_a_terminal(is_terminal, monkeypatch, capsys):
    # What rich itself goes by.
    monkeypatch.setenv('TTY_COMPATIBLE', str(int(is_terminal)))
    assert list(track([1, 2, 3], 'drawing')) == [1, 2, 3]
    out, err = capsys.readouterr()
    assert not out
    assert ('drawing' in err) == is_terminal
