"""The page to explore says what the backbones did, in a real browser."""

import base64
import json
import re
import zlib
from unittest import mock

import mmcv
import numpy as np
import pytest
import torch

from clustr_mm.analysis.cost import count_macs
from clustr_mm.backbones import clustr
from clustr_mm.visualization.blocks import record_blocks
from clustr_mm.visualization.explorer import Picture, Subject, build_page
from tests.browser import (
    chromium,
    emulate,
    names_missing,
    needs_browser,
    requests,
    wait_for,
)
from tests.runs import ROOT
from tests.test_visualization import (
    BACKBONES,
    SIZE,
    as_batch,
    colourful,
    model,
)
from tests.tiny_models import clustr_arch

VITS = [name for name in BACKBONES if name != 'ClusTR']


def subject(name, **changes):
    config = f'{name.lower()}_tiny.py'
    return Subject(model(name, **changes), config, 'random', SIZE)


def written(picture):
    """The data in the element of a picture."""
    return json.loads(re.search(r'>(.*)</script>$', picture.script())[1])


def labels(data, scale):
    packed = base64.b64decode(data['maps'][scale['map']])
    return np.frombuffer(zlib.decompress(packed), '<u4')


# What is recorded.
@pytest.mark.parametrize('name', VITS)
@pytest.mark.parametrize('size', [SIZE, (43, 77), (1, 1)])
def test_vits_end_as_their_trail_says(name, size):
    backbone, img = model(name).backbone, as_batch(colourful(size))
    blocks, _ = record_blocks(backbone, img)
    with torch.no_grad():
        _, trail = backbone.trace(img)
    assert len(blocks) == backbone.num_layers
    for block in blocks:
        assert block.grid == trail.grid
        (scale,) = block.scales
        assert scale.labels.shape == trail.grid
    assert (scale.labels == trail.owners(1)[0].view(trail.grid)).all()


def test_evit_fuses_in_these_blocks():
    """60 patches; 42 kept and 1 fused; 31 and 1; 23 and 1."""
    blocks, _ = record_blocks(model('EViT').backbone, as_batch(colourful()))
    tokens = [block.scales[0].num_tokens for block in blocks]
    assert tokens == [60, 43, 32, 24]
    sizes = [block.scales[0].labels.unique().numel() for block in blocks]
    assert sizes == tokens


def test_dynamicvit_counts_those_that_left():
    blocks, _ = record_blocks(
        model('DynamicViT').backbone, as_batch(colourful())
    )
    assert [block.scales[0].num_tokens for block in blocks] == [60, 42, 29, 20]
    for block in blocks:
        (scale,) = block.scales
        here = (scale.labels < scale.num_numbered).sum()
        assert here == scale.num_tokens


@pytest.mark.parametrize('reuse', [False, True])
def test_clustr_has_the_clusters_of_every_block(reuse):
    backbone, calls = model('ClusTR', reuse=reuse).backbone, []

    def record(*args, **kwargs):
        calls.append(found := density_peaks(*args, **kwargs))
        return found

    density_peaks = clustr.density_peaks
    with mock.patch.object(clustr, 'density_peaks', record):
        blocks, _ = record_blocks(backbone, as_batch(colourful()))
    titles = [block.title for block in blocks]
    assert titles[:3] == [
        'stage 1, block 1',
        'stage 2, block 1',
        'stage 2, block 2',
    ]
    # The first run was counted. The second stage has two blocks, and the
    # last stage attends to all tokens.
    calls = calls[len(calls) // 2 :]
    if reuse:
        calls.insert(2, calls[1])
    assert len(calls) == 4
    assert not blocks[-1].scales
    for block, found in zip(blocks, calls):
        assert len(block.scales) == len(found)
        for scale, clusters in zip(block.scales, found):
            assert scale.num_tokens == clusters.num_clusters
            assert (scale.labels.flatten() == clusters.labels[0]).all()


@pytest.mark.parametrize('name', BACKBONES)
def test_macs_of_the_blocks_are_those_of_the_model(name):
    """Of its blocks and what lies between, the embedding, there is no more."""
    backbone, img = model(name).backbone, as_batch(colourful())
    blocks, total = record_blocks(backbone, img)
    cost = count_macs(backbone, img)
    assert total == cost.macs
    parts = ('patch_embed', 'embeds', 'norm', 'norms', 'fc_norm')
    rest = sum(cost.part(part).total() for part in parts)
    assert all(block.macs for block in blocks)
    # Means and maps at the end belong to no part.
    outside = cost.modules[''].total() if '' in cost.modules else 0
    assert sum(block.macs for block in blocks) + rest + outside == total


# What is written.
def test_page_holds_what_was_recorded():
    picture, photo = Picture('a photo', colourful()), colourful()
    subjects = [subject('EViT'), subject('ClusTR')]
    for one in subjects:
        picture.add(one, photo)
    data = written(picture)
    for one, found in zip(subjects, data['models'], strict=True):
        backbone = one.model.backbone
        blocks, macs = record_blocks(backbone, as_batch(photo))
        assert found['backbone'] == type(backbone).__name__
        assert found['macs'] == macs
        assert found['seen'] == list(SIZE)
        assert len(found['blocks']) == len(blocks)
        for shown, block in zip(found['blocks'], blocks):
            assert shown['title'] == block.title
            assert shown['macs'] == block.macs
            for scale, partition in zip(
                shown['scales'], block.scales, strict=True
            ):
                expected = partition.labels.flatten().tolist()
                assert labels(data, scale).tolist() == expected


def test_page_needs_nothing_else():
    picture = Picture('</script><b>"ü"', colourful())
    picture.add(subject('EViT'), colourful(), 'sheet.png')
    page = build_page([picture.script()], '1 of 1 <images>')
    assert page.count('</script>') == page.count('<script') == 2
    assert not re.search(r'https?://|(?:src|href)="(?!data:)', page)
    assert "default-src 'none'" in page
    assert '<b>' not in page
    assert '&lt;images&gt;' in page


def test_pictures_of_a_detector_stay_below_3_mb():
    """Of one with the blocks of a ClusTR-S, at the size of COCO's images."""
    size = (800, 1344)
    arch = clustr_arch((3, 5, 13, 2), 4)
    photo = mmcv.imread(ROOT / 'docs/images/chelsea.jpg')
    photo = mmcv.imresize(photo, size[::-1])
    picture = Picture('chelsea', photo)
    picture.add(subject('ClusTR', arch=arch, window=14), photo)
    assert len(picture.script()) < 3e6


# What a browser makes of it.
SHOWN = ('ClusTR', 'EViT', 'DynamicViT', 'HVT')


@pytest.fixture(scope='module')
def driver(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp('profile')) as driver:
        yield driver


@pytest.fixture(scope='module')
def page(tmp_path_factory):
    """A page of two pictures, and the data of the first."""
    torch.manual_seed(0)
    pictures = [
        Picture('first', colourful()),
        Picture('second', colourful((43, 77))),
    ]
    for name in SHOWN:
        pictures[0].add(subject(name), colourful())
        pictures[1].add(subject(name), colourful((43, 77)))
    path = tmp_path_factory.mktemp('page') / 'index.html'
    scripts = [picture.script() for picture in pictures]
    path.write_text(build_page(scripts), encoding='utf-8')
    return path, written(pictures[0])


@pytest.fixture
def opened(driver, page):
    """Opens the page anew; afterwards nothing may be in the console."""
    emulate(driver)
    driver.get('about:blank')
    driver.get_log('browser')

    def open_page(words=''):
        driver.get(f'{page[0].as_uri()}{words and "#" + words}')
        settle(driver)
        return driver

    yield open_page
    assert driver.get_log('browser') == []


def settle(driver):
    """Wait until the page has drawn what is to be drawn."""
    driver.execute_async_script(
        'const done = arguments[0];'
        'const wait = () => document.documentElement.dataset.ready'
        ' ? requestAnimationFrame(() => requestAnimationFrame(done))'
        ' : setTimeout(wait, 20);'
        'wait();'
    )


def texts(driver, selector):
    return driver.execute_script(
        'return [...document.querySelectorAll(arguments[0])]'
        '.map((element) => element.textContent)',
        selector,
    )


def expected_fate(data, found, block, x, y):
    """Kind of the patch at a place from 0 to 1, and patches of its token."""
    block = found['blocks'][block]
    if not block['scales']:
        return 'alone', 1
    height, width = found['seen']
    row = int(y * height / block['stride'])
    column = int(x * width / block['stride'])
    scale = block['scales'][0]
    owner = labels(data, scale)
    mine = owner[row * block['grid'][1] + column]
    size = int((owner == mine).sum())
    if mine >= scale['numbered']:
        return 'gone', size
    return ('shared' if size > 1 else 'alone'), size


WORDS = {
    'alone': 'has a token of its own',
    'gone': 'has left',
    'shared': 'shares its',
}


def check_fates(driver, data, step, steps, x, y):
    """What the cards say of a place is what was recorded."""
    seen = set()
    told = texts(driver, '.fate')
    assert len(told) == len(data['models'])
    for card, (text, found) in enumerate(zip(told, data['models'])):
        blocks = len(found['blocks'])
        block = -(-step * blocks // steps) - 1
        kind, size = expected_fate(data, found, block, x, y)
        assert WORDS[kind] in text
        if kind == 'shared':
            assert f'with {size - 1} other' in text
        cells = driver.execute_script(
            "return [...document.querySelectorAll('article')[arguments[0]]"
            ".querySelectorAll('.cell')].map((cell) => cell.className)",
            card,
        )
        kinds = [expected_fate(data, found, i, x, y)[0] for i in range(blocks)]
        assert cells == [f'cell {kind}' for kind in kinds]
        seen.update(kinds)
    return seen


def hover(driver, x, y, card=0):
    """Move the pointer to a place of a card's photograph."""
    from selenium.webdriver import ActionChains

    canvas = driver.find_elements('css selector', 'canvas')[card]
    driver.execute_script(
        "arguments[0].scrollIntoView({block: 'center'})", canvas
    )
    width, height = canvas.size['width'], canvas.size['height']
    offset = round((x - 0.5) * width), round((y - 0.5) * height)
    ActionChains(driver, duration=0).move_to_element_with_offset(
        canvas, *offset
    ).perform()
    settle(driver)


def press(driver, *keys, on='body'):
    driver.find_element('css selector', on).send_keys(*keys)
    settle(driver)


@needs_browser
def test_pointing_tells_what_became_of_a_patch(opened, page):
    driver, seen = opened('step=4'), set()
    assert texts(driver, '.fate') == [''] * len(SHOWN)
    # Inside of patches of 4 and of 8 pixels, 20 and 10 in a row.
    for column, row in ((1.5, 1.5), (7.5, 7.5), (15.5, 4.5), (18.5, 10.5)):
        x, y = column / 20, row / 12
        hover(driver, x, y, card=1)
        seen |= check_fates(driver, page[1], 4, 5, x, y)
    assert seen == set(WORDS)
    # The pointer leaves.
    hover(driver, 0.5, -0.2)
    assert texts(driver, '.fate') == [''] * len(SHOWN)


@needs_browser
def test_a_click_holds_the_point(opened, page):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    driver = opened('step=5')
    hover(driver, 7.5 / 20, 7.5 / 12)
    ActionChains(driver, duration=0).click().perform()
    hover(driver, 0.8, 0.2)
    check_fates(driver, page[1], 5, 5, 7.5 / 20, 7.5 / 12)
    # The address leads there again, and Escape away.
    address = driver.current_url
    driver.get('about:blank')
    driver.get(address)
    settle(driver)
    check_fates(driver, page[1], 5, 5, 7.5 / 20, 7.5 / 12)
    press(driver, Keys.ESCAPE)
    assert texts(driver, '.fate') == [''] * len(SHOWN)


@needs_browser
def test_keys_lead_through_blocks_and_patches(opened, page):
    from selenium.webdriver.common.keys import Keys

    driver = opened('step=1')
    for step in range(1, 6):
        shown = texts(driver, '.now')
        for text, found in zip(shown, page[1]['models']):
            blocks = found['blocks']
            block = blocks[-(-step * len(blocks) // 5) - 1]
            assert text.lower().startswith(block['title'])
            counts = [str(scale['tokens']) for scale in block['scales']]
            assert f': {" + ".join(counts) or "all"} ' in text
            assert f'{block["macs"] / 1e6:.2f} M MACs' in text
        press(driver, '.')
    press(driver, ',')
    assert texts(driver, '#where') == ['4 of 5']
    press(driver, Keys.ARROW_LEFT, on='#step')
    assert texts(driver, '#where') == ['3 of 5']
    # The point begins in the middle, and goes on by patches of 8.
    second = 'article:nth-of-type(2) canvas'
    press(driver, Keys.ARROW_DOWN, on=second)
    rows, columns = page[1]['models'][1]['blocks'][0]['grid']
    place = [columns // 2, rows // 2]
    for key, move in (
        (Keys.ARROW_RIGHT, (1, 0)),
        (Keys.ARROW_UP, (0, -1)),
        (Keys.ARROW_LEFT, (-1, 0)),
        (Keys.ARROW_DOWN, (0, 1)),
    ):
        press(driver, key, on=second)
        place = [place[0] + move[0], place[1] + move[1]]
        x, y = (place[0] + 0.5) / columns, (place[1] + 0.5) / rows
        check_fates(driver, page[1], 3, 5, x, y)
        row = f'row {place[1] + 1}, column {place[0] + 1} '
        assert row in texts(driver, '.fate')[1]


def pixels(driver, card):
    """What is drawn on a card's canvas, [H, W, 3]."""
    address = driver.execute_script(
        "return document.querySelectorAll('canvas')[arguments[0]].toDataURL()",
        card,
    )
    data = base64.b64decode(address.partition(',')[2])
    return mmcv.imfrombytes(data, channel_order='rgb').astype(int)


@needs_browser
def test_shared_tokens_are_flat_and_those_that_left_grey(opened, page):
    driver, data = opened('step=5'), page[1]
    encoded = data['photo'].partition(',')[2]
    photo = mmcv.imfrombytes(
        base64.b64decode(encoded), channel_order='rgb'
    ).astype(int)
    for card, found in enumerate(data['models'][1:3], 1):
        block = found['blocks'][-1]
        owner = labels(data, block['scales'][0]).reshape(block['grid'])
        owner = owner.repeat(8, 0).repeat(8, 1)
        picture = pixels(driver, card)
        for token in np.unique(owner):
            where = owner == token
            if token >= block['scales'][0]['numbered']:
                assert np.ptp(picture[where], 1).max() < 40
                assert np.ptp(photo[where], 1).max() > 60
            elif where.sum() > 64:
                mean = photo[where].mean(0)
                assert abs(picture[where] - mean).max() <= 2
            else:
                assert abs(picture[where] - photo[where]).max() <= 2


@needs_browser
def test_views_and_scales_differ(opened):
    driver = opened('step=1')
    seen = [pixels(driver, 0)]
    for view in ('colours', 'outlines'):
        driver.find_element('css selector', f'[value={view}]').click()
        settle(driver)
        seen.append(pixels(driver, 0))
    driver.find_element(
        'css selector', '.scale select option:nth-child(2)'
    ).click()
    settle(driver)
    seen.append(pixels(driver, 0))
    for i, one in enumerate(seen):
        for other in seen[:i]:
            assert (one != other).any()


@needs_browser
def test_other_pictures_are_chosen(opened):
    driver = opened()
    before = pixels(driver, 1).shape
    option = driver.find_elements('css selector', '#picture option')[1]
    assert option.text == 'second'
    option.click()
    wait_for(driver, "return document.documentElement.dataset.ready === '2'")
    settle(driver)
    assert before == (48, 80, 3)
    assert pixels(driver, 1).shape == (43, 77, 3)


@needs_browser
def test_play_leads_through_the_blocks(opened):
    driver = opened('step=5')
    # The timer that it sets, without its second.
    driver.execute_script(
        'window.setInterval = (tick) => { window.tick = tick; return 1; };'
    )
    play = driver.find_element('css selector', '#play')
    play.click()
    seen = []
    for _ in range(3):
        driver.execute_script('window.tick()')
        settle(driver)
        seen += texts(driver, '#where')
    assert seen == ['1 of 5', '2 of 5', '3 of 5']
    assert play.get_attribute('aria-pressed') == 'true'
    play.click()
    assert play.get_attribute('aria-pressed') == 'false'


@needs_browser
@pytest.mark.parametrize('width', [320, 390, 768, 1280, 2000])
def test_nothing_is_wider_than_the_screen(opened, driver, width):
    emulate(driver, width)
    opened('at=.5,.5')
    script = 'return document.documentElement.scrollWidth'
    assert driver.execute_script(script) <= width


@needs_browser
def test_light_and_dark(opened, driver):
    colours = []
    for scheme in ('light', 'dark'):
        emulate(driver, scheme=scheme)
        opened()
        script = 'return getComputedStyle(document.body).backgroundColor'
        colours.append(driver.execute_script(script))
        driver.find_element('css selector', '#theme').click()
        settle(driver)
        colours.append(driver.execute_script(script))
        driver.get('about:blank')
    light, dark = colours[:2]
    assert light != dark
    assert colours[2:] == [dark, light]


@needs_browser
def test_all_that_takes_keys_has_a_name(opened, driver):
    opened('at=.5,.5&step=3')
    assert names_missing(driver) == []
    labels = driver.execute_script(
        "return [...document.querySelectorAll('canvas')]"
        ".map((canvas) => canvas.getAttribute('aria-label'))"
    )
    for label, now, fate in zip(
        labels, texts(driver, '.now'), texts(driver, '.fate')
    ):
        assert now in label
        assert fate in label


@needs_browser
def test_nothing_is_asked_of_a_network(opened, driver, page):
    driver.get_log('performance')
    opened()
    assert [a.partition('#')[0] for a in requests(driver)] == [
        page[0].as_uri()
    ]
