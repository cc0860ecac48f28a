"""Change the code in one small way after the other, and see which change the
tests do not notice.

Each mutant of a module is tried on the tests that mirror it, until one fails.
If none does, a test is missing, or the code says something that does not
matter. Who knows that of a mutant says why it may live in
`tests/living_mutants.txt`.

What was found is kept in `build/mutants.jsonl`: the command goes on where it
was stopped, and tries again what lived once its tests have changed, and all of
a module once that has. A sample of so many mutants a module is the same each
time, and part of every larger one.
"""

import argparse
import ast
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / 'build/mutants.jsonl'
EXCUSES = ROOT / 'tests/living_mutants.txt'
DEFAULT = [
    *('tokens', 'layers', 'backbones', 'training', 'checkpoints'),
    'runs',
]

# Tests of a module, besides those that have its name. Slow ones are left out.
VITS = ['test_properties/test_vits.py']
PLAIN = ['test_backbones/test_vit.py', *VITS]
REDUCERS = ['test_backbones/test_reducers.py']
MORE_TESTS = {
    'tokens/compiling.py': ['test_tokens/test_kmeans.py', 'test_export.py'],
    'tokens/density_peaks.py': ['test_backbones/test_clustr.py'],
    'tokens/maps.py': ['test_backbones/test_clustr.py'],
    'tokens/processor.py': ['test_tokens/test_products.py'],
    'tokens/products.py': [
        *('test_layers/test_linear.py', 'test_properties/test_trail.py'),
    ],
    'tokens/trail.py': ['test_backbones/test_hvt.py', *REDUCERS, *VITS],
    'layers/attention.py': ['test_backbones/test_dynamic_vit.py'],
    'layers/block.py': PLAIN,
    'layers/convolution.py': ['test_backbones/test_narrow_pictures.py'],
    'layers/patch_embed.py': ['test_backbones/test_lvvit.py', *PLAIN],
    'layers/pooling.py': ['test_backbones/test_hvt.py', *REDUCERS, *VITS],
    'layers/recompute.py': REDUCERS,
    'layers/reducer.py': REDUCERS,
    'backbones': [
        *(*REDUCERS, 'test_properties/test_wrong_options.py'),
        'test_analysis/test_paper.py',
    ],
    'backbones/backbone.py': PLAIN,
    'backbones/clustr.py': ['test_properties/test_wrong_options.py'],
    'training/global_batch.py': ['test_distributed.py'],
    'training/ratio_loss.py': ['test_training/test_sparsification.py'],
    'training/teacher.py': [
        'test_training/test_distillation.py',
        *('test_training/test_sparsification.py', 'test_published.py'),
    ],
    'checkpoints/checkpoint_hook.py': ['test_interruption.py'],
    'checkpoints/compatibility.py': ['test_safe_loading.py'],
    'checkpoints/download.py': ['test_published.py'],
    'checkpoints/layouts.py': ['test_checkpoints.py'],
    'checkpoints/load.py': ['test_published.py'],
    'checkpoints/replacements.py': ['test_safe_loading.py'],
    'checkpoints/publishing.py': ['test_publish_model.py'],
    'checkpoints/random_states.py': ['test_interruption.py'],
    'checkpoints/resuming.py': [
        'test_interruption.py',
        'test_safe_loading.py',
    ],
    'checkpoints/unpublished.py': ['test_published.py'],
    'runs/class_checks.py': ['test_own_images.py', 'bad_inputs'],
    'runs/cpu.py': ['test_host.py', 'test_amp.py', 'test_distributed.py'],
    'runs/data_paths.py': ['test_data_location.py'],
    'runs/initial_weights.py': ['test_tools.py', 'bad_inputs'],
    'runs/label_checks.py': ['test_own_images.py', 'bad_inputs'],
    'runs/launch.py': ['test_tools.py', 'test_interruption.py', 'bad_inputs'],
    'runs/loops.py': ['test_prepare.py', 'test_interruption.py'],
    'runs/runner.py': [
        *('test_errors.py', 'test_host.py', 'test_prepare.py'),
        'test_tools.py',
    ],
    'runs/summary.py': ['test_eta.py'],
}

PAIRS = [
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq)),
    *((ast.Is, ast.IsNot), (ast.In, ast.NotIn), (ast.And, ast.Or)),
    *((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr)),
    *((ast.FloorDiv, ast.Mod), (ast.Pow, ast.Mult)),
]
OPERATORS = {b: a for a, b in PAIRS} | dict(PAIRS)
WORDS = [
    *(('min', 'max'), ('amin', 'amax'), ('clamp_min', 'clamp_max')),
    *(('any', 'all'), ('ceil', 'floor'), ('sum', 'mean')),
    *(('zeros', 'ones'), ('new_zeros', 'new_ones')),
]
NAMES = {b: a for a, b in WORDS} | dict(WORDS)
# Without these a module does not even load.
NEEDED_DECORATORS = ('property', 'classmethod', 'contextmanager', 'dataclass')


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """What a node of a syntax tree may be changed to."""
    match node:
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1 if value < 10 else 0)
        case ast.Constant(float() as value):
            yield ast.Constant(10 * value if value else 1.0)
        case ast.Constant(str() as value) if ' ' not in value:
            yield ast.Constant(value + '_')
        case ast.Compare(left, [operator], right) if (
            type(operator) in OPERATORS
        ):
            yield ast.Compare(left, [OPERATORS[type(operator)]()], right)
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(OPERATORS[type(operator)](), values)
        case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
            yield ast.BinOp(left, OPERATORS[type(operator)](), right)
        case ast.AugAssign(target, operator, value):
            if type(operator) in OPERATORS:
                changed = OPERATORS[type(operator)]()
                yield ast.AugAssign(target, changed, value)
        case ast.UnaryOp(_, operand):
            yield operand
        case ast.If(test, body, orelse) if not has_opposite(test):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Expr(ast.Call()):
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case ast.Call(function, args, keywords):
            for i, keyword in enumerate(keywords):
                is_constant = isinstance(keyword.value, ast.Constant)
                # Without a GPU all is on one device.
                if not is_constant and keyword.arg != 'device':
                    others = keywords[:i] + keywords[i + 1 :]
                    yield ast.Call(function, args, others)
        case ast.Attribute(value, name, context) if name in NAMES:
            yield ast.Attribute(value, NAMES[name], context)
        case ast.Name(name, context) if name in NAMES:
            yield ast.Name(NAMES[name], context)


def has_opposite(test: ast.AST) -> bool:
    """Whether another replacement turns a condition round."""
    turned = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
    match test:
        case ast.UnaryOp(ast.Not()) | ast.Constant(bool()):
            return True
        case ast.Compare(_, [operator]):
            return isinstance(operator, turned)
    return False


def children(
    node: ast.AST,
) -> Iterator[tuple[str, int | None, ast.AST]]:
    """Nodes below a node, by field and place, as far as they may change.

    Not annotations and documentation, nor what an error says.
    """
    for field, value in ast.iter_fields(node):
        if field in ('annotation', 'returns'):
            continue
        # No right code fails for the `strict` of zip.
        if field == 'keywords' and head(node).startswith('zip('):
            continue
        is_list = isinstance(value, list)
        for place, child in enumerate(value) if is_list else [(None, value)]:
            is_text = isinstance(child, ast.Expr) and isinstance(
                child.value, ast.Constant
            )
            if isinstance(child, ast.AST) and not (
                is_text or isinstance(child, (ast.Raise, ast.JoinedStr))
            ):
                yield field, place, child


def put(node: ast.AST, field: str, place: int | None, child: ast.AST):
    if place is None:
        setattr(node, field, child)
    else:
        getattr(node, field)[place] = child


def mutate(node: ast.AST, where: str = '', line: str = '') -> Iterator[str]:
    """Change a tree in each way in turn; yield what is changed while it is."""
    if isinstance(node, ast.stmt):
        line = head(node)
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        where = f'{where}.{node.name}'.lstrip('.')
        for i, decorator in enumerate(list(node.decorator_list)):
            name = ast.unparse(decorator)
            if not name.startswith(NEEDED_DECORATORS):
                del node.decorator_list[i]
                yield f'{where}: without @{name}'
                node.decorator_list.insert(i, decorator)
    for field, place, child in children(node):
        for other in replacements(child):
            change = f'{head(child)} -> {head(other)}'
            put(node, field, place, other)
            yield f'{where}: {change} in: {line}'
            put(node, field, place, child)
        yield from mutate(child, where, line)


def head(node: ast.AST) -> str:
    """Code in a line; of what contains statements, the first."""
    return ast.unparse(node).partition('\n')[0]


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """Names and sources of all mutants."""
    tree, seen = ast.parse(source), Counter()
    for name in mutate(tree):
        seen[name] += 1
        number = f' ({seen[name]})' if seen[name] > 1 else ''
        yield name + number, ast.unparse(tree)


def tests_of(module: str) -> list[str]:
    """Files and folders of tests, relative to `tests`."""
    tests = ROOT / 'tests'
    own = sorted(tests.rglob(f'test_{Path(module).stem}.py'))
    more = MORE_TESTS.get(module, MORE_TESTS.get(Path(module).parts[0], []))
    found = [str(path.relative_to(tests)) for path in own]
    return found + [test for test in more if test not in found]


def digest(*paths: Path) -> str:
    """A hash of files and of the tests in folders."""
    files = [
        file
        for path in paths
        for file in (sorted(path.rglob('*.py')) if path.is_dir() else [path])
    ]
    return hashlib.md5(b''.join(f.read_bytes() for f in files)).hexdigest()


class Laboratory:
    """A copy of the checkout in which modules are changed and tested.

    The toolboxes take ten times as long to import as most tests to fail. They
    are imported once, and each mutant is tried in a fork.
    """

    def __init__(self, folder: Path):
        self.root = folder / 'checkout'
        shutil.copytree(
            ROOT,
            self.root,
            ignore=shutil.ignore_patterns('.*', 'build', 'work_dirs'),
        )
        # A module changes twice within a second, in which no cached one is
        # out of date.
        sys.dont_write_bytecode = True
        os.environ.update(
            PYTHONDONTWRITEBYTECODE='1', PYTHONPATH=str(self.root)
        )
        sys.path[:] = [str(self.root), *sys.path[1:]]
        sys.path[:] = [path for path in sys.path if Path(path) != ROOT]
        self._import()

    def _import(self):
        import torch

        torch.set_num_threads(1)  # a fork cannot use its parent's
        import hypothesis  # noqa: F401
        import mmcv.cnn  # noqa: F401
        import mmengine.runner  # noqa: F401
        import mmpretrain.models  # noqa: F401
        import pytest  # noqa: F401

    def try_out(
        self, module: str, source: str, tests: list[str], seconds: int
    ) -> str:
        """Whether a module with this source is 'noticed', or 'lives'."""
        path = self.root / 'clustr_mm' / module
        original = path.read_text()
        path.write_text(source)
        child = os.fork()
        if not child:
            self._become_tests(tests, seconds)
        _, status = os.waitpid(child, 0)
        path.write_text(original)
        with suppress(ProcessLookupError):  # nor is left what tests started
            os.killpg(child, signal.SIGKILL)
        return 'lives' if status == 0 else 'noticed'

    def _become_tests(self, tests: list[str], seconds: int):
        import pytest

        os.setpgid(0, 0)
        signal.alarm(seconds)
        os.chdir(self.root)
        log = os.open(self.root / 'log', os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        status = pytest.main(
            [
                *(f'tests/{test}' for test in tests),
                *('-x', '-q', '-m', 'not slow', '-p', 'no:cacheprovider'),
                *('--hypothesis-profile=mutants', '--rootdir', str(self.root)),
            ]
        )
        os._exit(status)


class Results:
    """What became of the mutants of a module, here and in earlier runs."""

    def __init__(self, root: Path, module: str, tests: list[str]):
        self.module = module
        self.source = digest(root / 'clustr_mm' / module)
        self.tests = digest(*(root / 'tests' / test for test in tests))
        self.known = {}
        lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
        for row in map(json.loads, lines):
            noticed = row['outcome'] == 'noticed'
            if row['source'] == self.source and (
                noticed or row['tests'] == self.tests
            ):
                self.known[row['mutant']] = row['outcome']

    def add(self, mutant: str, outcome: str):
        self.known[mutant] = outcome
        row = dict(vars(self), mutant=mutant, outcome=outcome)
        del row['known']
        RESULTS.parent.mkdir(exist_ok=True)
        with RESULTS.open('a') as file:
            file.write(json.dumps(row) + '\n')


def excuses() -> dict[str, str]:
    """Mutants that may live, and why: a line each, the reason indented."""
    found, name = {}, ''
    for line in EXCUSES.read_text().splitlines():
        if line.startswith('    '):
            found[name] += line[3:]
        elif line and not line.startswith('#'):
            name = line
            found[name] = ''
    return found


def drawn(module: str, source: str, number: int | None) -> list[str]:
    """Names of so many mutants, as if at random; of all for None."""
    names = [name for name, _ in mutants(source)]
    lots = {
        name: hashlib.md5(f'{module} {name}'.encode()).digest()
        for name in names
    }
    return sorted(names, key=lots.get)[:number]


def examine(
    laboratory: Laboratory, module: str, end: float, number: int | None
) -> Counter:
    """Try mutants of a module; say which live, and count them."""
    # What is edited meanwhile, the next run tries.
    source = (laboratory.root / 'clustr_mm' / module).read_text()
    sample = drawn(module, source, number)
    tests = tests_of(module)
    results = Results(laboratory.root, module, tests)
    excused, counts = excuses(), Counter()
    start, seconds = time.monotonic(), None
    for name, changed in mutants(source):
        if name not in sample:
            counts['not drawn'] += 1
            continue
        outcome = results.known.get(name)
        if f'{module} {name}' in excused:
            outcome = 'excused'
        elif outcome is None and time.monotonic() < end:
            if not tests:
                sys.exit(f'error: no test mirrors {module}: see MORE_TESTS')
            if seconds is None:
                seconds = baseline(laboratory, module, tests)
            outcome = laboratory.try_out(module, changed, tests, seconds)
            results.add(name, outcome)
        counts[outcome or 'untried'] += 1
        if outcome == 'lives':
            print(f'{module} {name}', flush=True)
    print(
        f'{module}: {counts.total()} mutants,',
        *(f'{number} {outcome},' for outcome, number in counts.items()),
        f'{time.monotonic() - start:.0f} s',
        flush=True,
    )
    return counts


def baseline(laboratory: Laboratory, module: str, tests: list[str]) -> int:
    """How long a mutant may take, in seconds, as the tests without one do."""
    start = time.monotonic()
    source = (laboratory.root / 'clustr_mm' / module).read_text()
    source = ast.unparse(ast.parse(source))
    if laboratory.try_out(module, source, tests, 1200) != 'lives':
        log = (laboratory.root / 'log').read_text()
        sys.exit(f'{log}\nerror: the tests of {module} fail as it is')
    return 30 + int(3 * (time.monotonic() - start))


def modules(paths: list[str]) -> Iterator[str]:
    """The modules in files and folders, relative to `clustr_mm`."""
    for path in paths:
        path = ROOT / 'clustr_mm' / path.removeprefix('clustr_mm/')
        if not path.exists():
            sys.exit(f'error: there is no {path}: name a module or a folder')
        for file in sorted(path.rglob('*.py')) if path.is_dir() else [path]:
            if file.name != '__init__.py':
                yield str(file.relative_to(ROOT / 'clustr_mm'))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        'modules', nargs='*', help='files or folders below clustr_mm'
    )
    parser.add_argument('--minutes', type=float, default=float('inf'))
    parser.add_argument(
        '--sample', type=int, metavar='N', help='mutants of each module'
    )
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    names = list(modules(args.modules or DEFAULT))
    counts = Counter()
    with tempfile.TemporaryDirectory() as folder:
        laboratory = Laboratory(Path(folder))
        for module in names:
            counts += examine(laboratory, module, end, args.sample)
    print(*(f'{number} {outcome},' for outcome, number in counts.items()))
    return int(counts['lives'] > 0)


if __name__ == '__main__':
    sys.exit(main())
