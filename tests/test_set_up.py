"""tools/set_up.sh and the Makefile, driven from outside.

uv, the interpreters and the compiler are small shell scripts, alone on the
PATH: nothing is installed and no network is needed.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.runs import ROOT

TOOLS = ['bash', 'cat', 'cksum', 'cp', 'cut', 'dirname', 'echo', 'env', 'find']
TOOLS += ['flock', 'getconf', 'grep', 'make', 'mkdir', 'mv', 'printenv']
TOOLS += ['readlink', 'rm', 'sed', 'sh', 'sleep', 'sort', 'tail', 'touch']
TOOLS += ['wc']

# Each answers what the set-up asks and writes down what it is told to do. The
# text in the file `hook` comes between, for a test to break or delay a step.
UV = """#!/bin/sh
world=@WORLD@
case "$1" in
  --version) echo "uv $(cat $world/version) (and more)"; exit ;;
  cache) echo >> $world/beats; echo $world/cache; exit ;;
esac
echo "uv $*" >> $world/calls
. $world/hook
if [ "$1" = venv ]; then
  for last; do :; done
  rm -rf $last; mkdir -p $last/bin; cp $world/python $last/bin/python
fi
"""
PYTHON = """#!/bin/sh
world=@WORLD@
case "$1$2" in
  -c*ensurepip*) exit ;;
  -c*find_spec*) . $world/find; exit ;;
  -c*Python.h*) . $world/headers; exit ;;
  -c*import_module*) echo import >> $world/calls ;;
  *) echo "$*" >> $world/calls ;;
esac
. $world/hook
case "$2 $3" in
  "venv "*) mkdir -p $3/bin; cp $0 $3/bin/python ;;
  "pip install") cp $world/uv ${0%/*}/uv ;;
esac
"""
STEPS = ['uv venv', 'uv pip sync', 'import']


class World:
    """A machine with a PATH and a checkout of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.bin = folder / 'bin'
        self.checkout = folder / 'checkout'
        self.python = self.checkout / '.venv/bin/python'
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        (self.checkout / 'tools').mkdir(parents=True)
        self.script = self.checkout / 'tools/set_up.sh'
        shutil.copy(ROOT / 'tools/set_up.sh', self.script)
        for name in ('Makefile', 'pyproject.toml'):
            shutil.copy(ROOT / name, self.checkout)
        shutil.copytree(ROOT / 'requirements', self.checkout / 'requirements')
        for name, text in (('uv', UV), ('python', PYTHON)):
            self.command(f'../{name}', text.replace('@WORLD@', str(folder)))
        shutil.copy(folder / 'uv', self.bin)
        self.command('c++')
        self.write(version='0.13.8', find='', headers='')
        self.on_step('')

    def command(self, name, text='#!/bin/sh\n'):
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def write(self, **files):
        for name, text in files.items():
            (self.folder / name).write_text(text)

    def on_step(self, text):
        self.write(hook=text, calls='')

    def lines(self):
        """The commands since the last `on_step`."""
        return (self.folder / 'calls').read_text().splitlines()

    def calls(self):
        """The same without their arguments."""
        return [re.split(r' (?:-|/)', line)[0] for line in self.lines()]

    def start(self, *command, **variables):
        environ = {'PATH': str(self.bin), 'HOME': str(self.folder)}
        environ.update(CLUSTR_MM_HEARTBEAT='0.2')
        environ.update({name: str(v) for name, v in variables.items()})
        return subprocess.Popen(
            command or [self.script, 'path'],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            cwd=self.checkout,
        )

    def run(self, *command, **variables):
        return finish(self.start(*command, **variables))

    def fails(self, *command, **variables):
        """What it then tells the user."""
        result = self.run(*command, **variables)
        assert result.code == 1, result.err
        assert result.out == ''
        return result.err

    def hold(self, step):
        """Have a step wait, and return a function that gives its process."""
        pid = self.folder / 'pid'
        self.on_step(f'case "$*" in {step}) echo $$ > {pid}; sleep 20;; esac')

        def held():
            until(lambda: pid.exists() and pid.read_text())
            return pid.read_text().strip()

        return held


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
    assert result.out == f'{world.python}\n'
    assert world.calls() == STEPS
    venv, sync, _ = world.lines()
    assert '--python >=3.10,<3.15' in venv
    assert '--require-hashes requirements/current.txt' in sync
    assert f'--python {world.python}' in sync
    assert 'quarter of an hour' in result.err
    assert str(world.checkout / 'build/set_up_current.log') in result.err


def test_next_time_nothing_is_done(world):
    first = world.run()
    world.on_step('')
    (world.bin / 'uv').unlink()
    second = world.run()
    assert (second.out, second.err) == (first.out, '')
    assert world.calls() == []


def test_run_is_the_interpreter(world):
    world.run()
    world.on_step('echo ran by $0; exit 7')
    result = world.run(world.script, 'run', '-m', 'pytest', '-x')
    assert (result.out, result.code) == (f'ran by {world.python}\n', 7)


def test_anew_if_what_it_is_made_from_changes(world):
    def set_up(**variables):
        world.on_step('')
        result = world.run(**variables)
        assert result.code == 0, result.err
        return world.calls() != []

    wheel = world.folder / 'mmcv-2.1.0-py3-none-any.whl'
    wheel.touch()
    assert set_up()
    for harmless in ('README.md', 'Makefile', 'requirements/upstream.txt'):
        (world.checkout / harmless).write_text('changed')
        assert not set_up(MAX_JOBS=1)
    for variables in (
        dict(UV_PYTHON='3.12'),
        dict(UV_TORCH_BACKEND='cpu'),
        dict(CLUSTR_MM_TORCH='torch==2.5.0'),
        dict(CLUSTR_MM_MMCV=wheel),
        dict(FORCE_CUDA=1),
        dict(TORCH_CUDA_ARCH_LIST=8.0),
    ):
        assert set_up(**variables)
        assert not set_up(**variables)
    assert set_up()
    for file in ('requirements/current.txt', 'pyproject.toml'):
        with open(world.checkout / file, 'a') as stream:
            stream.write('# changed\n')
        assert set_up()


def test_upstream_beside_the_other(world):
    base = world.run().out
    world.on_step('')
    result = world.run(CLUSTR_MM_STACK='upstream')
    assert result.out == f'{world.checkout}/.venv-upstream/bin/python\n'
    venv, sync, _ = world.lines()
    assert '--python >=3.10,<3.12' in venv
    assert '--require-hashes requirements/upstream.txt' in sync
    world.on_step('')
    assert world.run().out == base
    assert world.calls() == []
    error = world.fails(CLUSTR_MM_STACK='mine')
    assert 'CLUSTR_MM_STACK=mine is neither current nor upstream' in error


def test_compiled_mmcv_is_kept_apart_by_what_decides_on_its_operators(world):
    def settings(**variables):
        world.on_step('')
        assert world.run(**variables).code == 0
        return re.findall(r'settings-package (\S+)', world.lines()[1])

    assert settings() == []
    forced = settings(FORCE_CUDA=1)
    assert [x.partition(':')[0] for x in forced] == ['onedl-mmcv', 'mmcv']
    assert forced != settings(FORCE_CUDA=1, TORCH_CUDA_ARCH_LIST='8.0')
    gpu = '#!/bin/sh\necho "GPU 0: A100 (UUID: GPU-{})"\n'
    world.command('nvidia-smi', gpu.format(1))
    one = settings(UV_PYTHON='3.10')
    world.command('nvidia-smi', gpu.format(2))
    another = settings(UV_PYTHON='3.11')
    assert one == another != forced


@pytest.mark.parametrize('variable', ['CLUSTR_MM_TORCH', 'UV_TORCH_BACKEND'])
def test_another_torch(world, variable):
    wanted = 'torch==2.12.1+cpu torchvision==0.27.1+cpu'
    result = world.run(**{variable: wanted})
    assert result.code == 0, result.err
    assert world.calls() == ['uv venv', *['uv pip install'] * 2, 'import']
    assert world.lines()[1].endswith(' torch==2.12.1 torchvision==0.27.1')
    assert world.lines()[2].endswith(' --group pyproject.toml:current')
    build = world.checkout / 'build'
    kept = (build / 'constraints_current.txt').read_text().splitlines()
    assert 'onedl-mmengine==0.10.12' in kept
    assert not [x for x in kept if re.match('torch|nvidia| |.*--hash', x)]
    overrides = (build / 'overrides.txt').read_text().split()
    assert overrides == (wanted.split() if 'CLUSTR' in variable else [])


def test_prebuilt_mmcv(world):
    wheel = world.folder / 'mmcv-2.1.0-py3-none-any.whl'
    wheel.touch()
    (world.bin / 'c++').unlink()
    world.write(headers='exit 1')
    result = world.run(CLUSTR_MM_MMCV=wheel)
    assert result.code == 0, result.err
    # Not with the overrides, which would leave it out again.
    assert world.lines()[3] == (
        f'uv pip install --no-config --python {world.python} --no-deps {wheel}'
    )
    overrides = (world.checkout / 'build/overrides.txt').read_text()
    assert 'onedl-mmcv ; sys_platform == "never"' in overrides


def test_given_environment_is_used_as_it_is(world):
    mine = world.command('mine')
    result = world.run(CLUSTR_MM_ENV=mine, UV_PYTHON='/nowhere')
    assert (result.out, result.code) == (f'{mine}\n', 0)
    assert not (world.checkout / '.venv').exists()


def test_signs_of_life(world):
    world.on_step("""
        beats() {
          while [ $(wc -l < $world/beats) -lt $1 ]; do sleep 0.05; done
        }
        if [ "$1 $2" = 'pip sync' ]; then
          : > $world/beats; echo Downloading torch; beats 2
          cd $world/cache/sdists-v10/pypi/onedl-mmcv; touch a.o
          echo 'build a.o: compile a.cpp' > plan
          echo 'build b.o: compile b.cpp' >> plan
          mv plan build.ninja; beats 5
        fi""")
    (world.folder / 'cache/sdists-v10/pypi/onedl-mmcv').mkdir(parents=True)
    result = world.run()
    assert result.code == 0, result.err
    assert re.search(r'\d min \d+ s: Downloading torch', result.err)
    assert re.search(r'\d s: 1 of 2 files of mmcv compiled', result.err)


def test_compiles_as_many_files_at_a_time_as_the_memory_allows(world):
    pages = '#!/bin/sh\ncase $1 in {}; esac\n'
    answers = '_N*) echo 8 ;; _P*) echo 1572864 ;; P*) echo 4096 ;'
    (world.bin / 'getconf').unlink()
    world.command('getconf', pages.format(answers))  # 8 cores and 6 GB
    world.on_step('echo "jobs $MAX_JOBS" >> $world/calls')
    assert world.run().code == 0
    assert 'jobs 3' in world.lines()
    world.on_step('echo "jobs $MAX_JOBS" >> $world/calls')
    assert world.run(MAX_JOBS=5, UV_PYTHON='3.12').code == 0
    assert 'jobs 5' in world.lines()


# ------------------------------------------------- interruptions and damage


@pytest.mark.parametrize('how', [signal.SIGINT, signal.SIGTERM])
def test_interrupted(world, how):
    held = world.hold('*sync*')
    process = world.start()
    pid = held()
    process.send_signal(how)
    result = finish(process)
    assert result.code == 1
    assert 'Interrupted' in result.err
    until(lambda: not runs(pid))
    world.on_step('')
    assert world.run().code == 0
    assert world.calls() == STEPS


def test_killed(world):
    """Who comes next waits until nothing is left that could interfere."""
    held = world.hold('*sync*')
    process = world.start()
    pid = held()
    process.kill()
    process.wait()
    world.on_step('')
    following = world.start()
    time.sleep(0.5)
    assert world.calls() == []
    os.killpg(os.getpgid(int(pid)), signal.SIGTERM)
    process.communicate()
    result = finish(following)
    assert result.code == 0, result.err
    assert 'Waiting for another set-up' in result.err
    assert world.calls() == STEPS


def test_two_at_once(world):
    world.on_step('case "$*" in *sync*) sleep 1;; esac')
    first = world.start()
    until(lambda: 'uv pip sync' in world.calls())
    second = world.run()
    result = finish(first)
    assert result.code == second.code == 0
    assert result.out == second.out
    assert 'Waiting for another set-up' in second.err
    assert world.calls() == STEPS


def test_damaged(world):
    """The Python that it was made from is gone."""
    world.run()
    world.python.unlink()
    world.python.symlink_to(world.folder / 'removed')
    world.on_step('')
    assert world.run().code == 0
    assert world.calls() == STEPS


# ------------------------------------------------------------ what can fail


@pytest.mark.parametrize(
    ('output', 'advice'),
    [
        (
            'error: Failed to fetch: `file:///index/torch/`\n'
            '  cause: error sending request for url\n'
            '  cause: dns error: failed to lookup address information',
            'check the network',
        ),
        (
            'error: No solution found when resolving dependencies\n'
            '  cause: there is no version of torch==2.12.1+cpu',
            'CLUSTR_MM_TORCH',
        ),
        ('error: No interpreter found for Python >=3.10', 'install Python'),
        (
            'error: Failed to download `https://github.com/astral-sh/'
            'python-build-standalone/releases/download/cpython-3.10.tar.gz`\n'
            '  cause: dns error: failed to lookup address information',
            'install Python',
        ),
        ('error: Hash mismatch for `torch==2.12.1`', 'index settings of uv'),
        ('error: No space left on device (os error 28)', 'disk is full'),
        ('c++: fatal error: Killed signal terminated program', 'MAX_JOBS=1'),
        ('error: The wheel is not compatible with the Python', 'CLUSTR_MM_MM'),
        ('OSError: CUDA_HOME environment variable is not set', 'toolkit'),
        ('The detected CUDA version (12.1) mismatches', 'UV_TORCH_BACKEND'),
        ('something else altogether', 'lines above'),
    ],
)
def test_failed_step(world, output, advice):
    world.write(output=output)
    world.on_step('case "$*" in *sync*) cat $world/output; exit 2;; esac')
    error = world.fails()
    report = error[error.index('This step failed') :]
    assert 'This step failed: packages' in report
    assert f'  | {output.splitlines()[-1].strip()}' in report
    assert advice in report
    assert 'set_up_current.log' in report
    assert len(report.splitlines()) < 20
    world.on_step('')
    assert world.run().code == 0
    assert world.calls() == STEPS


def test_package_that_does_not_import(world):
    world.on_step('case "$1$2" in *import_module*) echo "ImportError: x"; '
                  'exit 1;; esac')  # fmt: skip
    error = world.fails()
    assert 'This step failed: a trial import' in error
    assert 'make clean-env' in error
    assert not (world.checkout / '.venv/ready').exists()


def test_no_compiler(world):
    (world.bin / 'c++').unlink()
    error = world.fails()
    assert 'No C++17 compiler' in error
    assert 'apt-get install g++' in error
    assert world.calls() == []


def test_compiler_too_old(world):
    world.command('old', '#!/bin/sh\necho no such standard >&2; exit 1\n')
    assert 'with: no such standard' in world.fails(CXX='old')


def test_no_headers(world):
    world.write(headers='exit 1')
    error = world.fails()
    assert 'Python.h' in error
    assert 'python3-dev' in error
    assert world.calls() == ['uv venv']


@pytest.mark.parametrize('on_the_path', [None, '0.12.9'])
def test_fetches_uv(world, on_the_path):
    """If there is none, or one that is too old; once."""
    if on_the_path:
        world.write(version=on_the_path)
    else:
        (world.bin / 'uv').unlink()
    world.command('python3', '#!/bin/sh\nexit 127\n')  # a shim
    shutil.copy(world.folder / 'python', world.bin / 'python3.12')
    fetched = ['-m venv', '-m pip install uv==0.13.8']
    assert world.run().code == 0
    assert world.calls() == fetched + STEPS
    world.on_step('')
    assert world.run(UV_PYTHON='3.12').code == 0
    assert world.calls() == STEPS


def test_half_of_uv_is_not_kept(world):
    (world.bin / 'uv').unlink()
    shutil.copy(world.folder / 'python', world.bin / 'python3')
    world.on_step('case "$2" in pip) echo "timed out"; exit 1;; esac')
    assert 'check the network' in world.fails()
    world.on_step('')
    assert world.run().code == 0
    assert world.calls()[:2] == ['-m venv', '-m pip install uv==0.13.8']


def test_neither_uv_nor_python(world):
    (world.bin / 'uv').unlink()
    result = world.run('make', 'env')
    assert result.code == 2
    assert 'Neither uv nor a Python with venv was found' in result.err
    assert 'apt-get install python3 python3-venv' in result.err


def test_given_environment_that_points_nowhere(world):
    assert 'CLUSTR_MM_ENV=/no/where' in world.fails(CLUSTR_MM_ENV='/no/where')


def test_given_environment_that_lacks_something(world):
    """Asked of a real one."""
    empty = world.folder / 'empty'
    command = [sys.executable, '-m', 'venv', '--without-pip', empty]
    subprocess.run(command, check=True)
    error = world.fails(CLUSTR_MM_ENV=empty / 'bin/python')
    assert 'it lacks torch, mmengine, mmcv, pytest, ruff.' in error


# ----------------------------------------------------------------- Makefile


def test_make_prints_the_path_alone(world):
    result = world.run('make', '-s', 'print-python')
    assert result.code == 0, result.err
    assert result.out == world.run().out


def test_make_runs_the_tests_in_either_environment(world):
    world.run()
    world.on_step('echo ran by $0: $*')
    result = world.run('make', 'test-upstream')
    assert result.code == 0, result.err
    ran = [x for x in result.out.splitlines() if x.startswith('ran by')]
    other = world.checkout / '.venv-upstream/bin/python'
    assert ran[-1].startswith(f'ran by {other}: -m pytest -m not slow ')


def test_make_lock_writes_both(world):
    assert world.run('make', 'lock', 'UPGRADE=ruff').code == 0
    names = ('current', 'upstream')
    for name, line in zip(names, world.lines(), strict=True):
        assert line.startswith('uv pip compile ')
        assert f'toml:{name} -o requirements/{name}.txt' in line
        assert '--upgrade-package ruff' in line
        header = (ROOT / f'requirements/{name}.txt').read_text()
        assert header.splitlines()[1] == '#    make lock'


def test_make_removes_the_environments(world):
    world.run()
    world.run(CLUSTR_MM_STACK='upstream')
    assert world.run('make', 'clean-env').code == 0
    assert not list(world.checkout.glob('.venv*'))


def test_make_help_tells_all(world):
    result = world.run('make')
    assert result.code == 0, result.err
    makefile = (ROOT / 'Makefile').read_text().replace('\\\n', '')
    targets = re.search(r'^\.PHONY: (.*)', makefile, re.MULTILINE)[1].split()
    variables = set(re.findall(r'CLUSTR_MM_\w+', world.script.read_text()))
    variables -= {'CLUSTR_MM_HEARTBEAT'}  # for this file
    assert len(targets) == 15
    assert len(variables) == 4
    for name in [*targets, *variables, 'UV_PYTHON', 'MAX_JOBS']:
        assert re.search(rf'^  {name} ', result.out, re.MULTILINE), name
