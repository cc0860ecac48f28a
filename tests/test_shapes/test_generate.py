"""The folder that `make_shapes` writes: what it does and never does to it."""

import hashlib
import json

import pytest
from mmengine import Config

from clustr_mm.errors import UserError
from clustr_mm.shapes import TASKS, generate, make_shapes
from tests.runs import ROOT, run_tool


def digests(folder):
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob('*'))
        if p.is_file()
    }


@pytest.fixture
def drawn(monkeypatch):
    """The numbers of the pictures that are drawn, as they are drawn."""
    numbers = []
    rng = generate.np.random.default_rng

    def counted(seed):
        numbers.append(seed[1])
        return rng(seed)

    monkeypatch.setattr(generate.np.random, 'default_rng', counted)
    return numbers


@pytest.mark.parametrize('task', TASKS)
def test_the_same_seed_gives_the_same_bytes(task, tmp_path):
    one, two, other = (
        digests(make_shapes(task, tmp_path / name, 10, seed, 48, val=0.5))
        for name, seed in (('one', 3), ('two', 3), ('other', 4))
    )
    assert one == two
    pictures = [name for name in one if name.endswith('.jpg')]
    assert len(pictures) == 10
    if task == 'classification':  # a class follows from the number alone
        assert one.keys() == other.keys()
    assert all(one[name] != other.get(name) for name in pictures)


@pytest.mark.parametrize('task', TASKS)
def test_more_pictures_extend_fewer(task, tmp_path):
    few = make_shapes(task, tmp_path / 'few', 10, size=48, val=0.5)
    many = make_shapes(task, tmp_path / 'many', 13, size=48, val=0.5)
    ours, theirs = digests(few), digests(many)
    for name in ours:
        if not name.endswith('.json'):
            assert ours[name] == theirs[name]
    for path in few.glob('annotations/*.json'):
        fewer = json.loads(path.read_text())
        more = json.loads((many / 'annotations' / path.name).read_text())
        for key in ('images', 'annotations'):
            assert fewer[key] == more[key][: len(fewer[key])]

    make_shapes(task, few, 13, size=48, val=0.5)
    assert digests(few) == theirs


def test_a_second_call_returns_at_once(tmp_path, drawn):
    make_shapes('segmentation', tmp_path, 6, size=48)
    assert drawn == list(range(6))
    before = digests(tmp_path)
    make_shapes('segmentation', tmp_path, 6, size=[48, 48])
    assert drawn == list(range(6))
    assert digests(tmp_path) == before


def test_an_interruption_is_noticed(tmp_path, monkeypatch):
    whole = make_shapes('segmentation', tmp_path / 'whole', 6, size=48)
    write, written = generate._write, []

    def interrupted(path, content):
        if len(written) == 5:
            raise KeyboardInterrupt
        written.append(path)
        write(path, content)

    monkeypatch.setattr(generate, '_write', interrupted)
    broken = tmp_path / 'broken'
    with pytest.raises(KeyboardInterrupt):
        make_shapes('segmentation', broken, 6, size=48)
    assert digests(broken) != digests(whole)
    monkeypatch.setattr(generate, '_write', write)
    make_shapes('segmentation', broken, 6, size=48)
    assert digests(broken) == digests(whole)


def test_a_lost_file_is_drawn_again(tmp_path):
    before = digests(make_shapes('pose', tmp_path, 6, size=64))
    next(tmp_path.glob('val2017/*.jpg')).unlink()
    make_shapes('pose', tmp_path, 6, size=64)
    assert digests(tmp_path) == before


@pytest.mark.parametrize(
    'manifest', [None, '{"name": "shapes"}', '[1]', '{"task": "segm']
)
def test_a_foreign_folder_is_left_alone(manifest, tmp_path):
    (tmp_path / 'images').mkdir()
    (tmp_path / 'images' / 'mine.jpg').write_bytes(b'mine')
    if manifest:
        (tmp_path / 'shapes.json').write_text(manifest)
    before = digests(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(UserError, match='not empty'):
            make_shapes('segmentation', tmp_path, 6, overwrite=overwrite)
    assert digests(tmp_path) == before


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / 'out').write_text('mine')
    with pytest.raises(UserError, match='is a file'):
        make_shapes('segmentation', tmp_path / 'out')


def test_other_arguments_need_overwrite(tmp_path):
    make_shapes('detection', tmp_path, 6, size=48)
    (tmp_path / 'notes.txt').write_text('mine')
    with pytest.raises(UserError, match=r'seed 0 \(asked: 1\)'):
        make_shapes('detection', tmp_path, 6, seed=1, size=48)
    with pytest.raises(UserError, match=r'num 6 \(asked: 5\)'):
        make_shapes('detection', tmp_path, 5, size=48)
    make_shapes('segmentation', tmp_path, 5, size=48, overwrite=True)
    assert (tmp_path / 'notes.txt').read_text() == 'mine'
    (tmp_path / 'notes.txt').unlink()
    fresh = make_shapes('segmentation', tmp_path.with_name('f'), 5, size=48)
    assert digests(tmp_path) == digests(fresh)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'task': 'depth'}, "unknown task 'depth'"),
        ({'num': 0}, 'num 0'),
        ({'num': -3}, 'num -3'),
        ({'num': 3, 'val': 0.2}, '0 to validate on; .* needs 1'),
        ({'num': 1, 'val': 0.9}, '1 to train and 0'),
        ({'task': 'classification', 'num': 20}, '4 to .* needs 5 of either'),
        ({'size': 8}, 'size .* from 32'),
        ({'size': [64, 64, 3]}, 'height, width'),
        ({'size': 10**6}, 'to 4096'),
        ({'val': 0}, 'val must .* not be 0'),
        ({'val': 1.0}, 'val must .* not be 1'),
        ({'seed': -1}, 'seed -1'),
    ],
)
def test_bad_arguments(arguments, message, tmp_path):
    out = tmp_path / 'out'
    with pytest.raises(UserError, match=message):
        make_shapes(**{'task': 'segmentation', 'out': out, **arguments})
    assert not out.exists()


def test_the_tool(tmp_path):
    made = make_shapes('segmentation', tmp_path / 'a', 5, 2, (40, 56))
    out = tmp_path / 'b'
    command = ['make_shapes.py', '--task', 'segmentation']
    command += ['--num', '5', '--seed', '2', '--size', '40', '56']
    command += ['--out', str(out)]
    text = run_tool(*command, cwd=tmp_path, TTY_COMPATIBLE='1')
    assert '5/5' in text
    assert text.endswith(f'{out}\n')
    assert digests(out) == digests(made)

    text = run_tool(*command, '--val', '0.5', cwd=tmp_path, ok=False)
    assert '--overwrite' in text


CONFIGS = sorted(ROOT.glob('configs/_base_/datasets/shapes_*.py'))


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_configs_name_the_same_classes(path):
    """`shapes_<task>.py` repeats the classes and their colours."""
    task = TASKS[path.stem.removeprefix('shapes_')]
    expected = json.loads(json.dumps(task.metainfo))  # tuples become lists
    config = Config.fromfile(path)
    for split in ('train', 'val', 'test'):
        dataset = config[f'{split}_dataloader']['dataset']
        metainfo = json.loads(json.dumps(dataset.get('metainfo', {})))
        assert metainfo == {key: expected[key] for key in metainfo}
        if task is TASKS['segmentation'] or task is TASKS['detection']:
            assert 'classes' in metainfo
