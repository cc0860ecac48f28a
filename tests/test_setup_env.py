"""tools/setup_env.py and the Makefile, driven from outside.

The interpreters, the compiler and pip are small shell scripts, alone on the
PATH: nothing is installed and no network is needed.
"""

import ast
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ['sh', 'cat', 'cp', 'mkdir', 'touch', 'sleep', 'sed', 'echo', 'make']

# Answers what the set-up asks and writes down what it is told to do. The text
# in the file `hook` comes in between, for a test to break or delay a step.
PYTHON = """#!/bin/sh
world=@WORLD@
case "$1$2" in
  -c*ensurepip*) echo '@FACTS@'; exit ;;
  -c*find_spec*) . $world/find; exit ;;
  -c*torch.cuda*) echo 2.12.1+cpu; exit ;;
  -c*import_module*) echo imported torch 2.12.1 ;;
  -c*) exit ;;
  -I*) case "$3" in *find_spec*) . $world/find ;; esac; exit ;;
  tools/*) exec @REAL@ "$@" ;;
  -mvenv) mkdir -p $3/bin; cp $0 $3/bin/python ;;
esac
[ $1 = -c ] && echo import >> $world/calls || echo $* >> $world/calls
. $world/hook
if [ "$2 $3" = 'pip wheel' ]; then
  while [ $1 != -w ]; do shift; done
  mkdir -p $2; touch $2/package.whl
fi
"""
FACTS = {
    'version': '3.11.7',
    'series': '3.11',
    'old': False,
    'tag': 'cp311-linux',
    'venv': True,
    'header': True,
}
# The commands of a set-up, each by its last argument.
STEPS = ['venv', 'build.txt', 'tests.txt', 'torch.txt', 'onedl-mmcv']
STEPS += ['xtcocotools', 'mm.txt', 'import']
STEPS_WITH_WHEELS = STEPS[:4] + STEPS[6:]


class World:
    """A machine with a PATH, a cache folder and a checkout of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.bin = folder / 'bin'
        self.cache = folder / 'cache'
        self.checkout = folder / 'checkout'
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        (self.checkout / 'tools').mkdir(parents=True)
        self.script = self.checkout / 'tools' / 'setup_env.py'
        shutil.copy(ROOT / 'tools' / 'setup_env.py', self.script)
        shutil.copy(ROOT / 'Makefile', self.checkout)
        shutil.copytree(ROOT / 'requirements', self.checkout / 'requirements')
        self.edit('HEARTBEAT = 15', 'HEARTBEAT = 0.2')
        self.edit('free < need:', 'free < need / 1e6:')
        self.interpreter('python3')
        self.command('c++')
        self.on_step('')
        self.on_find('')

    def command(self, name, text='#!/bin/sh\n'):
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def interpreter(self, name, **facts):
        facts = dict(FACTS, executable=str(self.bin / name), **facts)
        text = PYTHON.replace('@WORLD@', str(self.folder))
        text = text.replace('@REAL@', sys.executable)
        return self.command(name, text.replace('@FACTS@', json.dumps(facts)))

    def on_step(self, text):
        (self.folder / 'hook').write_text(text)
        (self.folder / 'calls').write_text('')

    def on_find(self, text):
        (self.folder / 'find').write_text(text)

    def edit(self, before, after):
        text = self.script.read_text()
        assert text.count(before) == 1
        self.script.write_text(text.replace(before, after))

    def calls(self):
        """The commands since the last `on_step`, by their last arguments."""
        text = (self.folder / 'calls').read_text()
        names = [Path(line.split()[-1]).name for line in text.splitlines()]
        return [re.sub('==.*', '', name) for name in names]

    def start(self, *command, **variables):
        environ = {'PATH': str(self.bin), 'HOME': str(self.folder)}
        environ.update(CLUSTR_MM_CACHE=str(self.cache))
        environ.update({name: str(v) for name, v in variables.items()})
        return subprocess.Popen(
            command or [sys.executable, self.script, 'path'],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            cwd=self.checkout,
        )

    def run(self, *command, **variables):
        return finish(self.start(*command, **variables))


def finish(process):
    out, err = process.communicate(timeout=30)
    return SimpleNamespace(out=out, err=err, code=process.returncode)


def until(condition):
    deadline = time.time() + 20
    while not condition():
        assert time.time() < deadline
        time.sleep(0.02)


def runs(pid):
    """A process that runs, and is no zombie that nobody has asked after."""
    try:
        state = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2]
    except FileNotFoundError:
        return False
    return state.split()[0] != 'Z'


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


# ------------------------------------------------------- the ordinary course


def test_steps_in_order_and_path_alone_on_stdout(world):
    result = world.run()
    assert result.code == 0, result.err
    assert world.calls() == STEPS
    python = Path(result.out.strip())
    assert result.out == f'{python}\n'
    assert python.is_relative_to(world.cache)
    lines = (world.folder / 'calls').read_text().splitlines()
    assert all('--no-cache-dir' in x for x in lines if 'pip wheel' in x)
    assert [x for x in lines if 'mm.txt' in x and '--no-deps' in x]
    for number in range(1, 7):
        assert f'[{number}/6]' in result.err
    assert 'ten minutes' in result.err
    assert str(python.parents[2] / 'setup.log') in result.err


def test_second_checkout_starts_at_once(world):
    first = world.run()
    other = world.folder / 'other'
    shutil.copytree(world.checkout, other)
    world.on_step('')
    began = time.perf_counter()
    second = world.run(sys.executable, other / 'tools/setup_env.py', 'path')
    assert time.perf_counter() - began < 1.5
    assert second.out == first.out
    assert second.err == ''
    assert world.calls() == []


def test_run_is_the_interpreter(world):
    python = world.run().out.strip()
    world.on_step('echo ran by $0; exit 7')
    script = [sys.executable, world.script, 'run', '-m', 'pytest', '-x']
    result = world.run(*script)
    assert (result.out, result.code) == (f'ran by {python}\n', 7)


def test_key_follows_what_is_installed(world):
    def key(**variables):
        result = world.run(**variables)
        assert result.code == 0, result.err
        return Path(result.out.strip()).parents[2].name

    base = key()
    assert base.startswith('py3.11.7-')
    for harmless in ('requirements/mminstall.txt', 'README.md', 'Makefile'):
        (world.checkout / harmless).write_text('changed')
        assert key(MAX_JOBS=1) == base
    wheel = world.folder / 'mmcv-2.1.0-py3-none-any.whl'
    wheel.touch()
    keys = [base]
    keys.append(key(CLUSTR_MM_TORCH='torch==2.5.0+cpu'))
    keys.append(key(CLUSTR_MM_TORCH_INDEX='file:///index'))
    keys.append(key(CLUSTR_MM_MMCV=wheel))
    os.utime(wheel, (0, 0))
    keys.append(key(CLUSTR_MM_MMCV=wheel))
    for name in ('torch.txt', 'constraints.txt', 'mm.txt'):
        with open(world.checkout / 'requirements' / name, 'a') as file:
            file.write('# changed\n')
        keys.append(key())
    world.interpreter('python3', version='3.11.8')
    keys.append(key())
    assert len(set(keys)) == len(keys)


def test_requirements_that_replace_others(world):
    base = world.run().out
    world.on_step('')
    folder = 'requirements/upstream'
    result = world.run(CLUSTR_MM_REQUIREMENTS=folder)
    assert result.code == 0, result.err
    compiled = ['mmcv']  # what is the same for both was compiled before
    assert world.calls() == STEPS[:4] + compiled + STEPS[6:]
    lines = (world.folder / 'calls').read_text().splitlines()
    names = ('torch.txt', 'mm.txt')
    replaced = [f'{world.checkout}/{folder}/{name}' for name in names]
    assert [x.split()[-1] for x in lines if folder in x] == replaced
    # Each has its environment, and a change to the one leaves the other alone.
    assert result.out != base
    with open(world.checkout / folder / 'mm.txt', 'a') as file:
        file.write('# changed\n')
    assert world.run().out == base
    assert world.run(CLUSTR_MM_REQUIREMENTS=folder).out != result.out


@pytest.mark.parametrize('content', [None, 'README', 'mminstall.txt'])
def test_requirements_that_replace_nothing(world, content):
    folder = world.folder / 'mine'
    if content:
        folder.mkdir()
        (folder / content).touch()
    result = world.run(CLUSTR_MM_REQUIREMENTS=folder)
    assert result.code == 1
    reason = content if content == 'mminstall.txt' else 'no files'
    assert f'CLUSTR_MM_REQUIREMENTS={folder} holds {reason}.' in result.err
    assert 'mm.txt, runtime.txt, tests.txt, torch.txt' in result.err
    assert world.calls() == []


def test_variables_reach_pip(world):
    wheel = world.folder / 'mmcv-2.1.0-py3-none-any.whl'
    wheel.touch()
    result = world.run(
        CLUSTR_MM_TORCH='torch==2.12.1+cpu torchvision==0.27.1+cpu',
        CLUSTR_MM_TORCH_INDEX='file:///index',
        CLUSTR_MM_MMCV=wheel,
    )
    assert result.code == 0, result.err
    lines = (world.folder / 'calls').read_text().splitlines()
    torch = '--extra-index-url file:///index torch==2.12.1+cpu torchvision=='
    assert any(torch in line for line in lines)
    assert not any('torch.txt' in line for line in lines)
    assert 'onedl-mmcv' not in world.calls()
    assert any(f'{wheel} -r' in line and 'mm.txt' in line for line in lines)


def test_given_environment_is_used_as_it_is(world):
    mine = world.command('mine', '#!/bin/sh\nexit 0\n')
    result = world.run(CLUSTR_MM_ENV=mine, CLUSTR_MM_PYTHON='/nowhere')
    assert (result.out, result.code) == (f'{mine}\n', 0)
    assert not world.cache.exists()
    script = [sys.executable, world.script]
    result = world.run(*script, 'clean', CLUSTR_MM_ENV=mine)
    assert result.code == 1
    assert mine.exists()


def test_clean_keeps_the_wheels(world):
    folder = Path(world.run().out).parents[2]
    result = world.run(sys.executable, world.script, 'clean')
    assert result.code == 0, result.err
    assert not folder.exists()
    world.on_step('')
    assert world.run().code == 0
    assert world.calls() == STEPS_WITH_WHEELS


def test_signs_of_life(world):
    world.on_step("""
        case "$*" in
          *tests.txt) echo Collecting numpy; sleep 0.5 ;;
          *wheel*mmcv*) cd $TMPDIR; touch a.o
            echo 'build a.o: compile a.cpp' > build.ninja
            echo 'build b.o: compile b.cpp' >> build.ninja; sleep 0.5 ;;
        esac""")
    result = world.run()
    assert result.code == 0
    assert re.search(r'0 s: Collecting numpy', result.err)
    assert re.search(r'0 s: 1 of 2 files compiled', result.err)


# ------------------------------------------------- interruptions and damage


@pytest.mark.parametrize('how', [signal.SIGINT, signal.SIGTERM])
def test_interrupted(world, how):
    world.on_step(
        'case "$*" in *torch.txt) echo $$ > $world/pid; sleep 30;; esac'
    )
    pid = world.folder / 'pid'
    process = world.start()
    until(lambda: pid.exists() and pid.read_text())
    process.send_signal(how)
    result = finish(process)
    assert result.code == 130
    assert 'Interrupted' in result.err
    until(lambda: not runs(pid.read_text().strip()))
    world.on_step('')
    assert world.run().code == 0
    assert world.calls() == STEPS[3:]


def test_killed(world):
    """Neither the set-up nor pip gets a chance to tidy up."""
    world.on_step(
        'case "$*" in *torch.txt) echo $$ > $world/pid; sleep 30;; esac'
    )
    pid = world.folder / 'pid'
    process = world.start()
    until(lambda: pid.exists() and pid.read_text())
    process.kill()
    process.wait()
    left = pid.read_text().strip()
    assert runs(left)
    world.on_step('')
    result = world.run()
    assert result.code == 0, result.err
    assert f'Process {process.pid} was killed' in result.err
    assert not runs(left)
    assert world.calls() == STEPS[3:]
    lines = (world.folder / 'calls').read_text().splitlines()
    assert '--ignore-installed' in lines[0]
    assert '--ignore-installed' not in lines[-2]


def test_killed_before_there_is_a_pip(world):
    world.on_step("""
        case "$*" in *build.txt)
          touch ../venv/half
          kill -9 $PPID; exit 1 ;;
        esac""")
    assert world.run().code == -signal.SIGKILL
    assert list(world.cache.glob('envs/*/venv/half'))
    world.on_step('')
    assert world.run().code == 0
    assert not list(world.cache.glob('envs/*/venv/half'))
    assert world.calls() == STEPS


def test_half_a_wheel_is_no_wheel(world):
    world.on_step("""
        case "$*" in *wheel*mmcv*)
          mkdir -p $world/cache/wheels/partial
          touch $world/cache/wheels/partial/half.whl
          kill -9 $PPID; exit 1 ;;
        esac""")
    assert world.run().code == -signal.SIGKILL
    world.on_step('')
    assert world.run().code == 0
    assert world.calls() == STEPS[4:]
    wheels = [path.name for path in world.cache.glob('wheels/*/*')]
    assert wheels == ['package.whl'] * 2


def test_two_at_once(world):
    world.on_step('case "$*" in *torch.txt) sleep 2;; esac')
    first = world.start()
    until(lambda: 'torch.txt' in world.calls())
    second = world.run()
    result = finish(first)
    assert result.code == second.code == 0
    assert result.out == second.out
    assert f'Waiting for process {first.pid} on ' in second.err
    assert world.calls() == STEPS


def test_stale_lock_file(world):
    world.cache.mkdir()
    stale = ['nowhere', 1, 2]
    (world.cache / 'lock').write_text(json.dumps(stale))
    result = world.run()
    assert result.code == 0
    assert 'Waiting' not in result.err


@pytest.mark.parametrize('damage', ['interpreter', 'package'])
def test_damaged(world, damage):
    python = Path(world.run().out.strip())
    world.on_step('case "$*" in *mm.txt) touch $world/whole;; esac')
    if damage == 'interpreter':  # the Python that it was made from is gone
        python.unlink()
        python.symlink_to(world.folder / 'removed')
    else:
        world.on_find('test -e $world/whole || { echo no mmcv >&2; exit 1; }')
    result = world.run()
    assert result.code == 0, result.err
    assert 'damaged' in result.err
    assert world.calls() == STEPS_WITH_WHEELS


# ------------------------------------------------------------ what can fail


@pytest.mark.parametrize(
    ('output', 'advice'),
    [
        (
            "WARNING: Retrying (...) after connection broken by 'N...Error'\n"
            'ERROR: No matching distribution found for torch==2.12.1',
            'check the network',
        ),
        ('ERROR: No matching distribution found for torch', 'CLUSTR_MM_TORCH'),
        ('OSError: [Errno 28] No space left on device', 'disk is full'),
        ('c++: fatal error: Killed signal terminated program', 'MAX_JOBS=1'),
        ('ERROR: m.whl is not a supported wheel', 'CLUSTR_MM_MMCV'),
        ("ModuleNotFoundError: No module named 'x'", 'make clean-env'),
        ('something else altogether', 'lines above'),
    ],
)
def test_failed_step(world, output, advice):
    (world.folder / 'output').write_text(output)
    hook = 'case "$*" in *torch.txt) cat $world/output; exit 1;; esac'
    world.on_step(hook)
    result = world.run()
    assert result.code == 1
    assert result.out == ''
    report = result.err[result.err.index('This step failed') :]
    assert '[3/6] torch' in report
    assert f'  | {output.splitlines()[-1]}' in report
    assert advice in report
    assert 'setup.log' in report
    assert 'Traceback' not in report
    assert len(report.splitlines()) < 20
    world.on_step('')
    assert world.run().code == 0
    assert world.calls() == STEPS[3:]


def test_step_ended_by_something_else(world):
    world.on_step('case "$*" in *wheel*mmcv*) kill -9 $$;; esac')
    result = world.run()
    assert result.code == 1
    assert '(signal 9)' in result.err
    assert 'MAX_JOBS=1' in result.err


def test_no_compiler(world):
    (world.bin / 'c++').unlink()
    result = world.run()
    assert result.code == 1
    assert 'No C++17 compiler' in result.err
    assert 'apt-get install g++' in result.err
    assert world.calls() == []


def test_compiler_too_old(world):
    world.command('old', '#!/bin/sh\necho no such standard >&2; exit 1\n')
    result = world.run(CXX='old')
    assert result.code == 1
    assert 'old: no such standard' in result.err


def test_no_headers(world):
    world.interpreter('python3', header=False)
    result = world.run()
    assert result.code == 1
    assert 'Python.h' in result.err
    assert 'python3.11-dev' in result.err


def test_little_disk(world):
    script = ROOT / 'tools' / 'setup_env.py'
    spec = importlib.util.spec_from_file_location('setup_env', script)
    setup_env = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup_env)
    older = world.cache / 'envs' / 'py3.11.6-older'
    older.mkdir(parents=True)
    env = SimpleNamespace(cache=world.cache, folder=older.parent / 'new')
    usage = namedtuple('Usage', 'free')(3e9)
    setup_env.shutil = SimpleNamespace(disk_usage=lambda folder: usage)
    with pytest.raises(setup_env.Problem) as problem:
        setup_env.check_machine(env, setup_env.STEPS)
    assert '3.0 GB are free' in str(problem.value)
    assert '12 GB are needed' in str(problem.value)
    assert str(older) in str(problem.value)
    # What is left to do after the big steps needs less.
    setup_env.check_machine(env, setup_env.STEPS[4:])


@pytest.mark.parametrize(
    ('facts', 'reason'),
    [
        ({'version': '3.13.0', 'series': '3.13'}, '3.13.0: too new'),
        ({'version': '3.9.2', 'series': '3.9', 'old': True}, 'too old'),
        ({'venv': False}, 'apt-get install python3.11-venv'),
    ],
)
def test_unsuitable_python(world, facts, reason):
    python = world.interpreter('python3', **facts)
    result = world.run()
    assert result.code == 1
    assert reason in result.err
    assert 'CLUSTR_MM_PYTHON' in result.err
    result = world.run(CLUSTR_MM_PYTHON=python)
    assert result.code == 1
    assert reason in result.err
    # The next one on the PATH is taken, past a shim that does not run.
    shim = '#!/bin/sh\necho "shim: not found" >&2; exit 127\n'
    world.command('python3.12', shim)
    result = world.run()
    assert 'python3.12 does not run (shim: not found)' in result.err
    suitable = world.interpreter('python3.10', version='3.10.4', series='3.10')
    result = world.run()
    assert result.code == 0, result.err
    assert f'with {suitable}' in result.err
    assert '/py3.10.4-' in result.out


def test_dead_shim_hides_nothing(world):
    world.command('python3', '#!/bin/sh\nexit 127\n')
    (world.folder / 'behind').mkdir()
    world.interpreter('../behind/python3')
    result = world.run(PATH=f'{world.bin}:{world.folder / "behind"}')
    assert result.code == 0, result.err


@pytest.mark.parametrize(
    'name', ['CLUSTR_MM_PYTHON', 'CLUSTR_MM_ENV', 'CLUSTR_MM_MMCV']
)
def test_variable_that_points_nowhere(world, name):
    result = world.run(**{name: '/no/where'})
    assert result.code == 1
    assert f'{name}=/no/where' in result.err
    assert world.calls() == []


def test_cache_that_cannot_be_written(world):
    (world.folder / 'file').touch()
    result = world.run(CLUSTR_MM_CACHE=world.folder / 'file' / 'cache')
    assert result.code == 1
    assert 'CLUSTR_MM_CACHE' in result.err
    assert 'Traceback' not in result.err


def test_given_environment_that_lacks_something(world):
    text = '#!/bin/sh\necho it lacks mmcv, ruff >&2; exit 1\n'
    result = world.run(CLUSTR_MM_ENV=world.command('mine', text))
    assert result.code == 1
    assert 'it lacks mmcv, ruff' in result.err


def test_real_interpreter_without_packages(world):
    """What the fake ones answer, asked of a real one."""
    result = world.run(CLUSTR_MM_PYTHON=sys.executable, CXX='false')
    assert 'No C++17 compiler' in result.err  # its facts were in order
    empty = world.folder / 'empty'
    command = [sys.executable, '-m', 'venv', '--without-pip', empty]
    subprocess.run(command, check=True)
    result = world.run(CLUSTR_MM_ENV=empty / 'bin' / 'python')
    assert 'it lacks torch, mmengine, mmcv, pytest, ruff.' in result.err


# ------------------------------------------------------------ around it all


def test_any_python_from_3_6_can_read_it():
    ast.parse(
        (ROOT / 'tools' / 'setup_env.py').read_text(), feature_version=(3, 6)
    )


def test_make_prints_the_path_alone(world):
    result = world.run('make', '-s', 'print-python')
    assert result.code == 0, result.err
    assert result.out == world.run().out


def test_make_runs_the_tests_in_either_environment(world):
    base = world.run().out.strip()
    world.on_step('echo ran by $0: $*')
    result = world.run('make', 'test-upstream')
    assert result.code == 0, result.err
    ran = [x for x in result.out.splitlines() if x.startswith('ran by')]
    assert ran[-1].endswith(': -m pytest -m not slow')
    assert base not in ran[-1]


def test_make_without_any_python(world):
    (world.bin / 'python3').unlink()
    result = world.run('make', 'env')
    assert result.code == 2
    assert 'No Python was found' in result.err


def test_make_help_tells_all(world):
    result = world.run('make')
    assert result.code == 0, result.err
    text = result.out
    makefile = (ROOT / 'Makefile').read_text()
    makefile = makefile.replace('\\\n', '')
    targets = re.search(r'^\.PHONY: (.*)', makefile, re.MULTILINE)[1].split()
    variables = set(re.findall(r'CLUSTR_MM_\w+', world.script.read_text()))
    assert len(targets) == 12
    assert len(variables) == 7
    for name in [*targets, *variables, 'MAX_JOBS']:
        assert re.search(rf'^  {name} ', text, re.MULTILINE), name


def test_requirements_are_pinned():
    names = set()
    for path in (ROOT / 'requirements').rglob('*.txt'):
        for line in path.read_text().splitlines():
            if path.name == 'mminstall.txt' or not line or line[0] in '#-':
                continue
            name, version = line.split('==')
            assert re.fullmatch(r'[\w.]+', version), line
            names.add(name)
    assert 'opencv-python-headless' in names
    assert 'opencv-python' not in names


def test_mim_gets_the_ranges_that_the_package_checks():
    from clustr_mm.dependencies import PACKAGES

    lines = (ROOT / 'requirements' / 'mminstall.txt').read_text().splitlines()
    assert [line for line in lines if not line.startswith('#')] == [
        f'{name}>={PACKAGES[name].least},<{PACKAGES[name].below}'
        for name in ('mmcv', 'mmengine')
    ]


def test_package_asks_for_nothing_of_others(tmp_path):
    command = [sys.executable, 'setup.py', '-q', 'egg_info']
    subprocess.run([*command, '-e', tmp_path], cwd=ROOT, check=True)
    text = (tmp_path / 'clustr_mm.egg-info' / 'requires.txt').read_text()
    assert text.split('[mim]')[0].split() == ['numpy']
