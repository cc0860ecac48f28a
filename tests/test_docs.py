"""The pages name only what exists, and say what is so."""

import ast
import inspect
import re
import sys

import pytest
import yaml

from clustr_mm import __version__
from clustr_mm.registry import MODELS
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
        for name in ('launch', 'config_files', 'safe_loading')
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
    files = 'tools/setup_env.py', 'clustr_mm/errors.py'
    text = ''.join((ROOT / file).read_text() for file in files)
    exist = set(re.findall(r'CLUSTR_MM_[A-Z_]+', text))
    explained = set()
    for page in PAGES.values():
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


def test_code_of_the_worked_example_is_the_code():
    source = (ROOT / 'clustr_mm/backbones/tome.py').read_text()
    blocks = python_blocks('docs/adding_a_reducer.md')
    # Options, and a file of the reader's own with its config.
    others = 'backbone', '"""', '_base_'
    shown = [block for block in blocks if not block.startswith(others)]
    assert len(shown) >= 5
    for block in shown:
        assert f'\n{block}' in source


def messages():
    """All strings of the package, with '…' for what is filled in."""
    makefile = (ROOT / 'Makefile').read_text()
    yield re.sub(r'\s*\\\n\s*', ' ', makefile)
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


def test_pages_build(tmp_path):
    """Also that every page is reached."""
    pytest.importorskip('mkdocs')
    command = (sys.executable, '-m', 'mkdocs', 'build', '--strict')
    run(*command, '--site-dir', tmp_path / 'site', cwd=ROOT)
    assert (tmp_path / 'site/index.html').exists()


def test_hooks_use_the_pinned_version():
    hooks = yaml.safe_load((ROOT / '.pre-commit-config.yaml').read_text())
    needed = [
        package
        for repo in hooks['repos']
        for hook in repo['hooks']
        for package in hook.get('additional_dependencies', [])
    ]
    pinned = (ROOT / 'requirements/tests.txt').read_text().split()
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
