"""The pages name only what exists, and say what is so."""

import ast
import inspect
import pkgutil
import re
import sys

import pytest
import torch
import yaml

from clustr_mm import __version__
from clustr_mm.analysis.models import build_model, read_config
from clustr_mm.registry import MODELS
from tests.browser import (
    chromium,
    emulate,
    needs_browser,
    requests,
    wait_for,
)
from tests.runs import ROOT, run

README = (ROOT / 'README.md').read_text()
DOCS = ROOT / 'docs'
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [
        ROOT / 'README.md',
        ROOT / 'CONTRIBUTING.md',
        ROOT / 'CHANGELOG.md',
        *sorted(DOCS.rglob('*.md')),
    ]
}
# Pages whose options are shown with their defaults.
OPTIONS = (
    'adding_a_reducer',
    'dynamicvit',
    'evit',
    'hvt',
    'index',
    'token_pooling',
)
# Messages of torch, MMEngine and MMPretrain.
UPSTREAM = 'KeyError', 'RuntimeError', 'The number of subfolders'
each_page = pytest.mark.parametrize('page', PAGES)


def python_blocks(page):
    return re.findall(r'^```python\n(.*?)^```', PAGES[page], re.M | re.S)


@each_page
def test_files_exist(page):
    folders = 'tools|configs|docs|tests|clustr_mm|requirements'
    pattern = rf'(?<![\w/.])(?:{folders})/[\w./*-]*[\w*]'
    paths = re.findall(pattern, PAGES[page])
    # What an installation has beside the modules is not in the checkout.
    paths = [p for p in paths if '/.mim' not in p]
    # NAME.py stands for any.
    paths = [p for p in paths if not re.search(r'/[A-Z]+\.', p)]
    assert not [p for p in paths if not any(ROOT.glob(p))]
    if page == 'README.md':
        assert len(paths) >= 8


@each_page
def test_python_files_exist(page):
    """Also configs that are named without their folder."""
    named = set(re.findall(r'`(\w+\.py)`', PAGES[page]))
    # What the reader is to write, or has.
    theirs = r'(?:Save this as|Let|call the config)\s+`(\w+\.py)`'
    named -= set(re.findall(theirs, PAGES[page]))
    folders = ('clustr_mm', 'configs', 'tests', 'tools')
    there = {
        path.name
        for folder in folders
        for path in (ROOT / folder).rglob('*.py')
    }
    assert named <= there


@each_page
def test_links_resolve(page):
    """Those to the web are not followed."""
    for target in re.findall(r'\]\(([^)\s]+)\)', PAGES[page]):
        if target.startswith(('https://', 'mailto:')):
            continue
        name, _, anchor = target.partition('#')
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), target


def anchors(path):
    titles = re.findall(r'^#+ (.*)', path.read_text(), re.M)
    return {
        re.sub(r'[^\w\- ]', '', title).lower().strip().replace(' ', '-')
        for title in titles
    }


@each_page
def test_tools_have_these_options(page):
    shared = ''.join(
        (ROOT / f'clustr_mm/{name}.py').read_text()
        for name in ('runs/launch', 'configs', 'checkpoints/safe_loading')
    )
    text = PAGES[page].replace('\\\n', ' ')
    commands = re.findall(r'^ {4,}.*?(tools/\w+\.(?:py|sh))(.*)', text, re.M)
    for tool, arguments in commands:
        source = (ROOT / tool).read_text() + shared
        if tool.endswith('.sh'):
            source += (ROOT / 'tools/train.py').read_text()
            source += (ROOT / 'tools/test.py').read_text()
        for option in re.findall(r'(?<!\S)--[a-z-]+', arguments):
            assert f"'{option}'" in source, f'{tool} {option}'


@each_page
def test_make_targets_exist(page):
    makefile = (ROOT / 'Makefile').read_text()
    before = '' if page == 'README.md' else '(?:^    |`)'
    pattern = rf'{before}make (?:-s )?([a-z-]+)'
    targets = re.findall(pattern, PAGES[page], re.M)
    for target in targets:
        assert f'\n{target}:' in makefile
    if page == 'README.md':
        assert {'quickstart', 'test'} <= set(targets)


def test_variables_exist():
    files = [ROOT / 'tools/set_up.sh', *(ROOT / 'clustr_mm').rglob('*.py')]
    text = ''.join(file.read_text() for file in files)
    exist = set(re.findall(r'CLUSTR_MM_[A-Z_]+', text))
    # For tests, and from one of our processes to another.
    exist -= {'CLUSTR_MM_HEARTBEAT', 'CLUSTR_MM_REPORT'}
    explained = set()
    for name, page in PAGES.items():
        if name != 'CHANGELOG.md':  # which also tells what is gone
            explained |= set(re.findall(r'CLUSTR_MM_[A-Z_]+', page))
    assert explained == exist


@each_page
def test_python_is_python(page):
    for block in python_blocks(page):
        # Methods are shown as they are indented in their class, and the
        # head of a class alone.
        if block.startswith(' '):
            block = f'class C:\n{block}'
        elif block.rstrip().endswith(':'):
            block = f'{block}    pass'
        compile(block, page, 'exec')


def test_example_of_the_readme(capsys):
    pytest.importorskip('mmpretrain')
    [block] = [b for b in python_blocks('README.md') if 'get_model' in b]
    scope = {}
    exec(block, scope)
    assert len(block.split('\n\n')[1].splitlines()) == 3
    assert scope['scores'].shape == (1, 1000)
    assert "'evit_s_k07_imagenet'" in capsys.readouterr().out


def test_readme_python_runs(capsys):
    (block,) = [b for b in python_blocks('README.md') if 'trace' in b]
    exec(block, {})
    assert capsys.readouterr().out.startswith('torch.Size([1, 384, 14, 14])')


def test_readme_config_builds(tmp_path):
    pytest.importorskip('mmdet')
    (block,) = [b for b in python_blocks('README.md') if '_base_' in b]
    path = tmp_path / 'retinanet.py'
    path.write_text(block)
    cfg = read_config(str(path))
    model = build_model(cfg)
    assert type(model.backbone).__name__ == 'ClusTR'
    with torch.no_grad():
        maps = model.extract_feat(torch.zeros(1, 3, 64, 96))
    # RetinaNet leaves out the map of stride 4.
    assert [tuple(fmap.shape[2:]) for fmap in maps[:2]] == [(8, 12), (4, 6)]


def configured(page):
    """What the blocks of a page build, with the arguments they show."""
    for block in python_blocks(page):
        if re.match(r'(backbone|model) = dict\(\n    type=', block):
            scope = {}
            exec(block, scope)
            yield scope.get('backbone') or scope['model']


def defaults(cls):
    """Arguments of the constructor, those that it hands on included."""
    found = {}
    for base in cls.__mro__:
        signature = inspect.signature(base.__init__)
        for name, parameter in list(signature.parameters.items())[1:]:
            found.setdefault(name, parameter.default)
        if 'kwargs' not in signature.parameters:
            break
    return found


@pytest.mark.parametrize('name', OPTIONS)
def test_options_are_the_defaults(name):
    if name == 'dynamicvit':
        pytest.importorskip('mmpretrain')
        import clustr_mm.training.sparsification  # noqa: F401
    shown = list(configured(f'docs/{name}.md'))
    assert shown
    for options in shown:
        real = defaults(MODELS.get(options.pop('type')))
        assert options == {key: real[key] for key in options}
        # Nothing of the class's own is left out.
        assert len(options) >= 3


def test_options_of_clustr_exist():
    (options,) = configured('docs/clustr.md')
    assert options.keys() - {'type'} <= defaults(MODELS.get('ClusTR')).keys()


def test_listed_reducers_make_a_network():
    """The first block of the page: a map of whatever its reducers left."""
    shown = python_blocks('docs/adding_a_reducer.md')[0]
    scope = {}
    exec(shown, scope)
    backbone = dict(
        scope['model']['backbone'], arch='deit-tiny', out_type='featmap'
    )
    found = MODELS.build(backbone).eval()
    with torch.no_grad():
        (fmap,), trail = found.trace(torch.randn(1, 3, 64, 96))
    assert fmap.shape == (1, 192, 4, 6)
    assert trail.reports == ['select', 'merge', 'merge']


def test_code_of_the_worked_example_is_the_code():
    source = (ROOT / 'clustr_mm/backbones/tome.py').read_text()
    blocks = python_blocks('docs/adding_a_reducer.md')
    # Options, and a file of the reader's own with its config.
    others = 'backbone', 'model', '"""', '_base_'
    shown = [block for block in blocks if not block.startswith(others)]
    assert len(shown) >= 5
    for block in shown:
        assert f'\n{block}' in source


def messages():
    """All strings of the package, with '…' for what is filled in."""
    yield re.sub(
        r"'?\s*\\\n\s*'?", ' ', (ROOT / 'tools/set_up.sh').read_text()
    )
    for folder in ('clustr_mm', 'tools'):
        for path in (ROOT / folder).rglob('*.py'):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant):
                    yield str(node.value)
                if isinstance(node, ast.JoinedStr):
                    parts = [getattr(p, 'value', '…') for p in node.values]
                    yield ''.join(
                        p if isinstance(p, str) else '…' for p in parts
                    )


def test_explained_messages_exist():
    page = PAGES['docs/troubleshooting.md']
    titles = re.findall(r'^### `(.*)`$', page, re.M)
    assert len(titles) > 30
    there = list(messages())
    for title in titles:
        if title.startswith(UPSTREAM):
            continue
        pattern = '.*'.join(map(re.escape, title.split('…')))
        assert any(re.search(pattern, text, re.S) for text in there), title


def test_api_page_names_what_exists():
    """MkDocs leaves out a member that there is not, without a word."""
    pattern = r'^::: (\S+)\n(?: {4}options:\n {6}members: \[(.*)\])?'
    found = re.findall(pattern, PAGES['docs/api.md'], re.M)
    assert len(found) > 10
    for path, members in found:
        thing = pkgutil.resolve_name(path)
        for member in filter(None, members.split(', ')):
            assert hasattr(thing, member), f'{path}.{member}'


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    """The pages, as `make docs` builds them."""
    for package in ('material', 'mkdocstrings', 'mmpretrain'):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp('site')
    command = (sys.executable, '-m', 'mkdocs', 'build', '--strict')
    run(*command, '--site-dir', folder, cwd=ROOT)
    return folder


def test_pages_build(site):
    """Also that every page is reached."""
    assert (site / 'index.html').exists()
    page = (site / 'explorer.html').read_text()
    assert page.count('"backbone":') == 6


@pytest.fixture(scope='module')
def browser(site, tmp_path_factory):
    """And the address of the pages, opened from the disk."""
    with chromium(tmp_path_factory.mktemp('profile')) as driver:
        yield driver, site.as_uri()


@needs_browser
def test_pages_fit_the_screen_and_ask_nobody(browser, site):
    """Tables that do not fit scroll in themselves."""
    driver, address = browser
    # A server's page of what is missing has that server's addresses.
    pages = sorted({path.name for path in site.glob('*.html')} - {'404.html'})
    assert len(pages) > 15
    for width in (390, 1280):
        emulate(driver, width)
        for page in pages:
            driver.get(f'{address}/{page}')
            script = 'return document.documentElement.scrollWidth'
            assert driver.execute_script(script) <= width, page
            tables = driver.execute_script(
                "return [...document.querySelectorAll('article table')]"
                '.map((table) => {'
                '  const box = table.closest(".md-typeset__scrollwrap")'
                '    || table;'
                '  return [box.getBoundingClientRect().right,'
                '    getComputedStyle(box).overflowX];'
                '})'
            )
            for right, overflow in tables:
                assert right <= width or overflow in ('auto', 'scroll'), page
    assert driver.get_log('browser') == []
    assert all(a.startswith((address, 'about:')) for a in requests(driver))


@needs_browser
def test_code_has_colours_by_day_and_night(browser):
    driver, address = browser
    backgrounds = []
    for scheme in ('light', 'dark'):
        emulate(driver, scheme=scheme)
        driver.get(f'{address}/evit.html')
        wanted = {'light': 'default', 'dark': 'slate'}[scheme]
        wait_for(
            driver,
            f"return document.body.dataset.mdColorScheme === '{wanted}'",
        )
        colours = driver.execute_script(
            "return [...document.querySelectorAll('.highlight code span')]"
            '.map((span) => getComputedStyle(span).color)'
        )
        assert len(set(colours)) > 3
        backgrounds.append(
            driver.execute_script(
                'return getComputedStyle(document.body).backgroundColor'
            )
        )
    assert len(set(backgrounds)) == 2


@needs_browser
def test_search_finds(browser):
    driver, address = browser
    emulate(driver)
    driver.get(f'{address}/index.html')
    query = driver.find_element(
        'css selector', '[data-md-component=search-query]'
    )
    wait_for(driver, "return !document.querySelector('.md-search').hidden")
    query.send_keys('density peaks')
    found = wait_for(
        driver,
        "return [...document.querySelectorAll('.md-search-result__link')]"
        '.map((link) => link.href)',
    )
    assert any('density_peaks' in address for address in found)


@needs_browser
def test_explorer_in_its_page_follows_the_colours(browser):
    driver, address = browser
    emulate(driver, scheme='dark')
    driver.get(f'{address}/visualization.html')
    wait_for(driver, "return document.body.dataset.mdColorScheme === 'slate'")
    frame = driver.find_element('css selector', 'iframe.explorer')
    theme = "return document.documentElement.dataset.theme === '{}'"
    driver.switch_to.frame(frame)
    wait_for(driver, theme.format('dark'))
    assert wait_for(driver, "return document.querySelectorAll('h2').length")
    driver.switch_to.default_content()
    driver.execute_script("document.body.dataset.mdColorScheme = 'default'")
    driver.switch_to.frame(frame)
    wait_for(driver, theme.format('light'))
    # A page that is done after its frame, whose `load` has been, then.
    driver.execute_script("document.documentElement.dataset.theme = ''")
    driver.switch_to.default_content()
    driver.execute_script(
        "document.dispatchEvent(new Event('DOMContentLoaded'))"
    )
    driver.switch_to.frame(frame)
    wait_for(driver, theme.format('light'))
    driver.switch_to.default_content()


def test_hooks_use_the_pinned_version():
    hooks = yaml.safe_load((ROOT / '.pre-commit-config.yaml').read_text())
    needed = [
        package
        for repo in hooks['repos']
        for hook in repo['hooks']
        for package in hook.get('additional_dependencies', [])
    ]
    pinned = (ROOT / 'requirements/current.txt').read_text().split()
    assert needed
    assert set(needed) <= set(pinned)


def test_citation():
    cited = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
    assert cited['version'] == __version__
    assert f'## {__version__}' in PAGES['CHANGELOG.md']
    assert {'cff-version', 'message', 'title', 'authors'} <= cited.keys()
    assert len(cited['references']) >= 6


@pytest.mark.parametrize(
    'path', sorted((ROOT / '.github/ISSUE_TEMPLATE').glob('*.yml'))
)
def test_issue_templates(path):
    form = yaml.safe_load(path.read_text())
    if path.name == 'config.yml':
        return
    assert {'name', 'description', 'body'} <= form.keys()
    for field in form['body']:
        assert field['type'] in ('markdown', 'textarea', 'input', 'dropdown')
        assert 'attributes' in field
