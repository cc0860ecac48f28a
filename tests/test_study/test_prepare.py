"""Pictures of the study: from files as their homes offer them to what the
toolboxes read."""

import gzip
import io
import json
import tarfile

import cv2
import numpy as np
import pytest

from clustr_mm.errors import UserError
from clustr_mm.study import sources
from clustr_mm.study.garments import MOST, compose, silhouette
from clustr_mm.study.prepare import TILE, prepare, tiles
from clustr_mm.study.sources import Aerial


@pytest.fixture(scope='module')
def downloads(tmp_path_factory):
    """Made-up pictures under the names and in the layouts of real ones."""
    return make_downloads(tmp_path_factory.mktemp('downloads'))


def make_downloads(folder, num_train=40, num_test=20):
    rng = np.random.default_rng(0)

    def photographs(num):
        images = rng.integers(0, 256, (num, 32, 32, 3), np.uint8)
        return images, np.uint8(np.arange(num) % 10)

    train, test = photographs(num_train), photographs(num_test)
    np.savez(
        folder / 'cifar10.npz',
        x_train=train[0],
        y_train=train[1],
        x_test=test[0],
        y_test=test[1],
    )
    garments = np.zeros((40, 28, 28), np.uint8)
    garments[:, 6:22, 8:20] = rng.integers(40, 256, (40, 16, 12))
    np.savez(
        folder / 'fashion_mnist.npz',
        x=garments,
        y=np.uint8(np.arange(40) % 10),
    )
    crowns = folder / 'tree_crowns'
    crowns.mkdir()
    images, annotations = [], []
    for number, name in enumerate(('2019_YELL_2_541000_a', 'OSBS_029')):
        picture = rng.integers(0, 256, (450, 500, 3), np.uint8)
        cv2.imwrite(str(crowns / f'{name}.png'), picture)
        images.append(
            dict(id=number, file_name=f'{name}.png', width=500, height=450)
        )
        for box in ([10, 20, 60, 50], [200, 100, 80, 90]):
            annotations.append(
                dict(id=len(annotations), image_id=number, bbox=box)
            )
    (crowns / 'annotations.json').write_text(
        json.dumps(dict(images=images, annotations=annotations))
    )
    return folder


def test_the_binary_archive_of_cifar(tmp_path):
    """Its home says: a byte for the label, 1024 of red, green, then blue."""
    record = np.zeros((2, 3073), np.uint8)
    record[:, 0] = 3, 9
    record[0, 1 + 5] = 11  # red of row 0, column 5
    record[1, 1 + 1024 + 32] = 22  # green of row 1, column 0
    record[1, 1 + 2048 + 1023] = 33  # blue of the last pixel
    with tarfile.open(tmp_path / 'cifar-10-binary.tar.gz', 'w:gz') as archive:
        for name in (*(f'data_batch_{i}' for i in range(1, 6)), 'test_batch'):
            info = tarfile.TarInfo(f'cifar-10-batches-bin/{name}.bin')
            info.size = record.size
            archive.addfile(info, io.BytesIO(record.tobytes()))
    found = sources.photographs(tmp_path)
    assert len(found['train']) == 10
    assert found['test'].labels.tolist() == [3, 9]
    images = found['test'].images
    assert images.shape == (2, 32, 32, 3)
    assert images[0, 0, 5].tolist() == [11, 0, 0]
    assert images[1, 1, 0].tolist() == [0, 22, 0]
    assert images[1, 31, 31].tolist() == [0, 0, 33]


def test_the_four_files_of_fashion_mnist(tmp_path):
    images = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)
    for part in ('train', 't10k'):
        head = bytes([0, 0, 8, 3]) + np.array([3, 28, 28], '>u4').tobytes()
        path = tmp_path / f'{part}-images-idx3-ubyte.gz'
        path.write_bytes(gzip.compress(head + images.tobytes()))
        head = bytes([0, 0, 8, 1]) + np.array([3], '>u4').tobytes()
        path = tmp_path / f'{part}-labels-idx1-ubyte.gz'
        path.write_bytes(gzip.compress(head + bytes([7, 0, 9])))
    found = sources.garments(tmp_path)
    assert (found['test'].images == images).all()
    assert found['train'].labels.tolist() == [7, 0, 9]


def test_training_and_testing_share_no_garment(downloads):
    found = sources.garments(downloads)
    train, test = ({x.tobytes() for x in f.images} for f in found.values())
    assert len(train) + len(test) == 40
    assert not train & test
    for split in found.values():
        assert set(split.labels) == set(range(10))


@pytest.mark.parametrize(
    ('name', 'read'),
    [
        ('cifar10.npz', sources.photographs),
        ('fashion_mnist.npz', sources.garments),
        ('tree_crowns/annotations.json', sources.tree_crowns),
    ],
)
def test_bad_files(name, read, tmp_path):
    with pytest.raises(UserError, match='is not in .* it takes'):
        read(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b'<html>log in first</html>')
    with pytest.raises(UserError, match='Download it again'):
        read(tmp_path)


def test_a_silhouette_has_no_holes():
    ring = np.zeros((28, 28), np.uint8)
    cv2.circle(ring, (14, 14), 9, 200, 3)
    inside = silhouette(ring)
    assert inside[14, 14] == 1
    assert inside[0, 0] == 0


def test_a_scene_is_its_parts():
    """Each pixel shows the photograph or the garment that came last."""
    photograph = np.full((32, 32, 3), 200, np.uint8)
    garments = np.zeros((10, 28, 28), np.uint8)
    garments[:, 4:24, 4:24] = 255
    counts = set()
    for seed in range(60):
        scene = compose(
            np.random.default_rng(seed),
            64,
            photograph,
            garments,
            np.arange(10),
        )
        counts.add(len(scene.labels))
        semantic = scene.semantic()
        assert ((semantic == 0) == (scene.owner < 0)).all()
        for number, label in enumerate(scene.labels):
            assert (semantic[scene.owner == number] == label + 1).all()
        # Away from edges, where both mix.
        bare = cv2.erode(np.uint8(scene.owner < 0), np.ones((5, 5))) > 0
        assert (scene.image[bare] == 200).all()
    assert counts == set(range(1, MOST + 1))


def test_garments_in_both_layouts_agree(downloads, tmp_path):
    from pycocotools.coco import COCO

    out = prepare('garments_128', downloads, tmp_path / 'out', 6, 3)
    again = prepare('garments_128', downloads, tmp_path / 'again', 4, 3)
    coco = COCO(out / 'train.json')
    assert len(coco.imgs) == 6
    for image in coco.imgs.values():
        name = image['file_name']
        labels = cv2.imread(str(out / 'labels/train' / name), 0)
        assert labels.shape == (128, 128)
        told = np.zeros_like(labels)
        for annotation in coco.imgToAnns[image['id']]:
            mask = coco.annToMask(annotation)
            assert annotation['area'] == mask.sum()
            x, y, w, h = annotation['bbox']
            assert mask[y : y + h, x : x + w].sum() == mask.sum()
            told[mask > 0] = annotation['category_id']
        # What shows too little has no box.
        differs = told != labels
        assert (told[differs] == 0).all()
        assert differs.mean() < 0.02
    # A scene depends on its number alone.
    for name in ('00000.png', '00003.png'):
        path = f'images/train/{name}'
        assert (out / path).read_bytes() == (again / path).read_bytes()
    with pytest.raises(UserError, match='remove that folder'):
        prepare('garments_128', downloads, out, 7, 3)


def test_tiles_cover_a_photograph_once():
    image = np.arange(900 * 1000).reshape(900, 1000, 1) % 251
    boxes = np.array([[x, y, 20, 30] for x in (5, 395, 900) for y in (3, 700)])
    found = list(tiles(Aerial('a', np.uint8(image), boxes.astype(float))))
    assert all(max(tile.shape[:2]) <= TILE for tile, _ in found)
    total = sum(len(b) for _, b in found)
    # The two at 395 to 415 are cut 5 to 15: the smaller part is no crown.
    assert total == len(boxes)
    for tile, b in found:
        assert (b[:, :2] >= 0).all()
        assert (b[:, :2] + b[:, 2:] <= tile.shape[1::-1]).all()
        assert (b[:, 2:] > 0).all()


def test_crowns_are_split_by_place(downloads, tmp_path):
    out = prepare('crowns', downloads, tmp_path)
    counts = {}
    for split, source in (('train', 'OSBS_029'), ('test', '2019_YELL')):
        content = json.loads((out / f'{split}.json').read_text())
        counts[split] = len(content['annotations'])
        path = next((downloads / 'tree_crowns').glob(f'{source}*.png'))
        whole = cv2.imread(str(path))
        first = cv2.imread(str(out / f'images/{split}/0000.png'))
        assert (first == whole[:TILE, :TILE]).all()
    assert counts == dict(train=2, test=2)
