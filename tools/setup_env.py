#!/usr/bin/env python3
"""Set up the environment that `make` works in.

    setup_env.py env           set it up and say where it is
    setup_env.py path          the same, and print the interpreter's path alone
    setup_env.py run ARGS...   the same, and run that interpreter with ARGS
    setup_env.py clean         remove it

It is shared between checkouts: it lives in a cache folder, under a key made
from all that it is built from. `make help` lists the variables.

This file runs before anything is installed: it needs the standard library
alone and keeps to Python 3.6, so that an unsuitable Python gets a reason
instead of a SyntaxError.
"""
# ruff: noqa: UP022

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / 'requirements'
PYTHONS = ('3.12', '3.11', '3.10')
RECIPE = 1  # raise it when a change here has to rebuild the environments
HEARTBEAT = 15  # seconds between two signs of life in a log
ESSENTIAL = ['torch', 'mmengine', 'mmcv', 'pytest', 'ruff']
THE_REST = ['torchvision', 'mmcv.ops', 'mmpretrain', 'mmseg', 'mmdet']
THE_REST += ['mmdet.datasets', 'mmpose', 'mmpose.datasets', 'xtcocotools.mask']
# How pip handles packages whose requirements are installed by a step before.
UNASSISTED = ['--no-deps', '--no-build-isolation']

# Run by interpreters of which nothing is known yet, be it Python 2.
EXAMINE = """
import json, os, sys, sysconfig
try:
    import ensurepip, venv
except ImportError:
    venv = None
header = os.path.join(sysconfig.get_paths()['include'], 'Python.h')
print(json.dumps(dict(
    executable=sys.executable, version='%d.%d.%d' % sys.version_info[:3],
    series='%d.%d' % sys.version_info[:2], old=sys.version_info < (3, 10),
    tag='cp%d%d-' % sys.version_info[:2] + sysconfig.get_platform(),
    venv=bool(venv), header=os.path.exists(header))))
"""
FIND = """
import sys, importlib.util as util
lacking = [name for name in sys.argv[1:] if not util.find_spec(name)]
sys.exit('it lacks ' + ', '.join(lacking) if lacking else 0)
"""
IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    version = getattr(importlib.import_module(name), '__version__', '')
    print('imported', name, version, flush=True)
"""
# With a GPU, or FORCE_CUDA=1, mmcv compiles its CUDA operators as well.
TORCH_BUILD = """
import os, torch
cuda = torch.cuda.is_available() or os.getenv('FORCE_CUDA') == '1'
print(torch.__version__ + '-cuda' * cuda)
"""

# What the output of a failed step may contain, and what to do then.
ADVICE = """
No space left
The disk is full: free some space, or choose another one with CLUSTR_MM_CACHE.

connection broken|NewConnectionError|Failed to resolve|TimeoutError|ProxyError
The package index cannot be reached: check the network, and the proxy and
index settings of pip (`pip config list`).

No matching distribution
The package index lacks a version for this Python and platform: check the
settings of pip (`pip config list`) and CLUSTR_MM_TORCH, or choose another
Python with CLUSTR_MM_PYTHON.

Killed signal|Cannot allocate memory
The compiler ran out of memory: set MAX_JOBS=1.

is not a supported wheel
The wheel of CLUSTR_MM_MMCV is for another Python or platform.

CUDA version .* mismatch
The CUDA compiler (nvcc) and torch are of different CUDA versions: choose the
torch that fits with CLUSTR_MM_TORCH.

undefined symbol|torchvision::nms
Compiled operators do not fit this torch: check that what CLUSTR_MM_TORCH and
CLUSTR_MM_MMCV name belongs together.

ModuleNotFoundError|ImportError
A package is missing or broken: start anew, with `make clean-env`.
"""


class Problem(Exception):
    """What is wrong and what to do about it, in words for the user."""


def say(text, end='\n'):
    print(text, end=end, file=sys.stderr, flush=True)


def duration(seconds):
    minutes, seconds = divmod(int(seconds), 60)
    return f'{minutes} min {seconds:02d} s' if minutes else f'{seconds} s'


def setting(name):
    """The value of a variable, or ''. A ~ may come unexpanded from make."""
    return os.path.expanduser(os.environ.get(name, '').strip())


def remove(folder):
    if folder.exists():
        shutil.rmtree(str(folder))


def ask(*command):
    """The output of a short command and, if it fails, the reason."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            errors='replace',
        )
    except OSError as error:
        return '', error.strerror
    reason = (done.stderr.strip() or 'it gives no reason').split('\n')[-1]
    return done.stdout.strip(), reason if done.returncode else ''


# ------------------------------------------------------------ interpreters


def examine(path):
    """Facts about an interpreter, and why not to build with it."""
    text, error = ask(path, '-c', EXAMINE)
    if error or not text.startswith('{'):
        return None, f'does not run ({error or text})'
    facts = json.loads(text)
    if facts['series'] not in PYTHONS:
        age = 'old' if facts['old'] else 'new'
        return facts, f'is Python {facts["version"]}: too {age}'
    if not facts['venv']:
        package = f'python{facts["series"]}-venv'
        return facts, f'has no venv module (Debian: apt-get install {package})'
    return facts, ''


def find_python():
    """Facts about the first suitable interpreter."""
    chosen = setting('CLUSTR_MM_PYTHON')
    names = ['python3'] + ['python' + series for series in PYTHONS]
    names = [chosen] if chosen else names
    # Of each name all that are on the path: the first may be a dead shim.
    folders = os.environ.get('PATH', os.defpath).split(os.pathsep)
    paths = [shutil.which(n, path=folder) for n in names for folder in folders]
    tried = {}
    for path in filter(None, paths):
        same = os.path.realpath(path)
        if same not in tried:
            facts, reason = examine(path)
            if not reason:
                return facts
            tried[same] = f'  {path} {reason}\n'
    if chosen and not tried:
        raise Problem(f'CLUSTR_MM_PYTHON={chosen} points to nothing that runs')
    raise Problem(
        'No suitable Python: 3.10, 3.11 or 3.12 is needed.\n'
        + ''.join(tried.values())
        + 'Install one (Debian: apt-get install python3 python3-venv '
        'python3-dev), or set\nCLUSTR_MM_PYTHON to the path of one.'
    )


def given_python(path, thorough):
    """CLUSTR_MM_ENV: the interpreter of an environment that is not ours."""
    python = shutil.which(path)
    error = 'nothing that runs is there'
    if python:
        error = ask(python, '-c', FIND, *ESSENTIAL)[1]
        if thorough and not error:
            error = ask(python, '-c', IMPORT, *ESSENTIAL)[1]
    if error:
        raise Problem(
            f'CLUSTR_MM_ENV={path}: {error}.\nIt takes the path of an '
            'interpreter, whose environment is used as it is: repair that,\n'
            'or unset the variable to have an environment set up.'
        )
    return os.path.abspath(python)


# -------------------------------------------------------------------- lock


@contextlib.contextmanager
def lock(env):
    """One set-up at a time in a cache folder.

    The command that the holder has running inherits the lock. If the holder
    is killed outright, the lock is thus held until that command has ended
    too; whoever waits and finds the holder dead ends it.
    """
    began = report = time.time()
    with open(str(env.cache / 'lock'), 'a+') as env.lock:
        while True:
            try:
                fcntl.flock(env.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.time() >= report:
                    explain_wait(env, time.time() - began)
                    report += HEARTBEAT
                time.sleep(0.2)
        note(env, os.getpid())
        try:
            yield
        finally:
            env.lock.truncate(0)


def note(env, pid, command=None):
    """Write down who holds the lock and which command it has running."""
    env.lock.truncate(0)
    env.lock.write(json.dumps([socket.gethostname(), pid, command]))
    env.lock.flush()


def noted(env):
    """What the holder wrote, or not yet, or no longer."""
    env.lock.seek(0)
    return json.loads(env.lock.read() or '[null, null, null]')


def explain_wait(env, waited):
    host, pid, command = noted(env)
    if command and host == socket.gethostname() and not is_alive(pid):
        say(f'Process {pid} was killed at a set-up; ending what it left.')
        end(command)
    elif pid:
        say(f'Waiting for process {pid} on {host} to finish a set-up in ', '')
        say(f'{env.cache}, {duration(waited)} so far')


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # somebody else's
    return True


def end(group):
    with contextlib.suppress(ProcessLookupError):
        if group:
            os.killpg(group, signal.SIGTERM)


# ------------------------------------------------------------- environment


class Environment:
    """A folder of the cache, and the steps that were done in it so far."""

    def __init__(self):
        self.base = find_python()
        self.files = requirement_files()
        self.mmcv = prebuilt_mmcv()
        home = setting('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
        cache = setting('CLUSTR_MM_CACHE') or os.path.join(home, 'clustr_mm')
        self.cache = Path(os.path.abspath(cache))
        self.folder = self.cache / 'envs' / self.key()
        self.venv = self.folder / 'venv'
        self.python = str(self.venv / 'bin' / 'python')
        self.tmp = self.folder / 'tmp'
        self.log = self.folder / 'setup.log'
        self.ready = self.folder / 'READY'

    def key(self):
        parts = [RECIPE, self.base['version'], self.base['tag'], self.mmcv]
        parts += map(setting, ['CLUSTR_MM_TORCH', 'CLUSTR_MM_TORCH_INDEX'])
        if os.path.exists(self.mmcv):
            parts.append(os.stat(self.mmcv).st_mtime)
        for name, path in sorted(self.files.items()):
            parts += [name, path.read_text()]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        return f'py{self.base["version"]}-{digest[:12]}'

    def is_ready(self):
        """Finished, and not damaged since. Takes milliseconds."""
        found = not ask(self.python, '-I', '-c', FIND, *ESSENTIAL)[1]
        return found and self.ready.exists()

    def ensure(self):
        if self.is_ready():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with lock(self):
            if self.is_ready():  # built by the one that was waited for
                return
            runs = not ask(self.python, '-I', '-c', '')[1]
            if self.venv.exists() and (self.ready.exists() or not runs):
                say(f'The environment in {self.folder} is damaged: once more.')
                self.reset()
            self.build()

    def reset(self):
        """The stamps go first: a venv removed by half never counts."""
        for stamp in [self.ready, *self.folder.glob('*.done')]:
            with contextlib.suppress(FileNotFoundError):
                stamp.unlink()
        remove(self.venv)

    def build(self):
        began = time.time()
        todo = [s for s in STEPS if not self.stamp(s, '.done').exists()]
        check_machine(self, todo)
        say(
            f'Setting up an environment with {self.base["executable"]}\n'
            f'  folder: {self.folder}\n'
            f'  output: {self.log}\n'
            'The first time takes a quarter of an hour on two cores. It may be'
            ' interrupted:\nwhat is done stays done.'
        )
        self.log.write_text('')
        for number, step in enumerate(STEPS, 1):
            title = f'[{number}/{len(STEPS)}] {step.__doc__}'
            if step in todo:
                self.carry_out(step, title)
            else:
                say(f'{title}: done before')
        self.ready.write_text(self.base['executable'])
        say(f'The environment is set up ({duration(time.time() - began)}).')

    def stamp(self, step, state):
        return self.folder / (step.__name__ + state)

    def carry_out(self, step, title):
        began = time.time()
        begun = self.stamp(step, '.begun')
        self.again = begun.exists()  # and there may be halves of packages
        begun.touch()
        say(title + ', again from its beginning' * self.again)
        try:
            step(self)
        except subprocess.CalledProcessError as error:
            raise Problem(self.diagnosis(title, error.returncode)) from None
        os.sync()  # no stamp may outlive what it stands for
        begun.rename(self.stamp(step, '.done'))
        say(f'      done in {duration(time.time() - began)}')

    def pip(self, command, *args):
        if command == 'install' and self.again:
            args = ('--ignore-installed', *args)
        self.run(self.python, '-m', 'pip', command, *args)

    def run(self, *command):
        """Run a step's command: output to the log, signs of life to stderr."""
        remove(self.tmp)
        self.tmp.mkdir()
        command = list(map(str, command))
        with open(str(self.log), 'a') as log:
            log.write(f'\n$ {" ".join(command)}\n')
        self.offset = self.log.stat().st_size
        try:
            child = self.start(command)
            self.watch(child)
        except KeyboardInterrupt:
            end(noted(self)[2])
            raise
        note(self, os.getpid())
        if child.returncode:
            raise subprocess.CalledProcessError(child.returncode, command)

    def start(self, command):
        with open(str(self.log), 'a') as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.variables(),
                cwd=str(self.tmp),
                start_new_session=True,
                pass_fds=[self.lock.fileno()],
                # By the child itself: this process may die before it could.
                preexec_fn=lambda: note(self, os.getppid(), os.getpid()),
            )

    def variables(self):
        """What the commands see: this environment instead of the caller's."""
        hidden = ('PYTHONPATH', 'PYTHONHOME', 'MAKEFLAGS', 'MAKELEVEL')
        env = {k: v for k, v in os.environ.items() if k not in hidden}
        path = env.get('PATH', os.defpath)
        env.update(PATH=str(self.venv / 'bin') + os.pathsep + path)
        env.update(TMPDIR=str(self.tmp), PIP_PROGRESS_BAR='off')
        env.update(PIP_USER='0', PIP_NO_INPUT='1')
        # The compiler takes up to 2 GB for a file.
        memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
        jobs = max(1, min(os.cpu_count(), memory // 2**31))
        env['MAX_JOBS'] = env.get('MAX_JOBS') or str(jobs)
        return env

    def watch(self, child):
        """Wait for a command; a terminal sees one line that changes."""
        began = time.time()
        terminal = sys.stderr.isatty()
        before, after = ('\r\033[K', '') if terminal else ('', '\n')
        while child.poll() is None:
            try:
                child.wait(1 if terminal else HEARTBEAT)
            except subprocess.TimeoutExpired:
                so_far = duration(time.time() - began)
                say(f'{before}      {so_far}: {self.news()}', after)
        say(before, '')

    def output(self):
        """What the running or the last command has printed."""
        with open(str(self.log), errors='replace') as log:
            log.seek(self.offset)
            return log.read()

    def lines(self):
        """The lines of it that tell something."""
        lines = [line.strip() for line in self.output().splitlines()]
        return [x for x in lines if x and not x.startswith('WARNING')]

    def news(self):
        with contextlib.suppress(OSError):  # files come and go
            plans = [p.read_text() for p in self.tmp.rglob('build.ninja')]
            total = sum(plan.count(': compile ') for plan in plans)
            objects = len(list(self.tmp.rglob('*.o')))
            if total:
                return f'{objects} of {total} files compiled'
        return (self.lines() or ['started'])[-1][:60]

    def diagnosis(self, title, code):
        lines = self.lines()
        errors = [x for x in lines if re.search('(?i)error|fatal|killed', x)]
        shown = [f'  | {line[:200]}' for line in (errors or lines)[-8:]]
        pairs = [p.split('\n', 1) for p in ADVICE.strip().split('\n\n')]
        advice = [text for p, text in pairs if re.search(p, self.output())]
        if code < 0:
            advice.append(
                f'It was ended from outside (signal {-code}). If that was for '
                'lack of memory, MAX_JOBS=1 may help.'
            )
        advice.append('The lines above should tell why.')
        return '\n'.join(
            [f'This step failed: {title}', *shown, advice[0]]
            + ['Then run the same command again: it goes on with this step.']
            + [f'The whole output is in {self.log}']
        )


# ------------------------------------------------------------------- steps


def requirement_files():
    """By name. Those in CLUSTR_MM_REQUIREMENTS replace their namesakes."""
    files = {path.name: path for path in REQUIREMENTS.glob('*.txt')}
    del files['mminstall.txt']  # not for this environment
    folder = setting('CLUSTR_MM_REQUIREMENTS')
    if folder:
        paths = Path(folder).resolve().glob('*.txt')
        replaced = {path.name: path for path in paths}
        strange = ', '.join(sorted(set(replaced) - set(files)))
        if strange or not replaced:
            raise Problem(
                f'CLUSTR_MM_REQUIREMENTS={folder} holds '
                f'{strange or "no files"}.\nIt takes a folder with files '
                'that replace some of these: ' + ', '.join(sorted(files))
            )
        files.update(replaced)
    return files


def prebuilt_mmcv():
    """CLUSTR_MM_MMCV: an absolute path or a URL, or '' to compile mmcv."""
    wheel = setting('CLUSTR_MM_MMCV')
    if not wheel or '://' in wheel:
        return wheel
    if not os.path.isfile(wheel):
        raise Problem(f'CLUSTR_MM_MMCV={wheel} points to no file.')
    return os.path.abspath(wheel)


def check_machine(env, steps):
    """Find out now what would otherwise fail in ten minutes."""
    need = sum(GIGABYTES.get(step.__name__, 0.5) for step in steps)
    free = shutil.disk_usage(str(env.folder)).free / 1e9
    if free < need:
        others = set(env.folder.parent.iterdir()) - {env.folder}
        raise Problem(
            f'Too little disk space: {free:.1f} GB are free in {env.cache}, '
            f'{need:.0f} GB are needed.\nFree some, or choose another disk '
            'with CLUSTR_MM_CACHE.'
            + '\nThese environments of other versions may go:' * bool(others)
            + ''.join(f'\n  {other}' for other in sorted(others))
        )
    if compile_wheels in steps:
        check_compiler(env)


def check_compiler(env):
    compiler = os.environ.get('CXX') or 'c++'
    flags = '-std=c++17 -fsyntax-only -x c++ -include optional -'
    error = ask(*shlex.split(f'{compiler} {flags}'))[1]
    if error:
        raise Problem(
            f'No C++17 compiler, to compile mmcv with: {compiler}: {error}.\n'
            'Install one (Debian: apt-get install g++; Fedora: dnf install '
            'gcc-c++;\nmacOS: xcode-select --install), or point CXX to one.'
        )
    if not env.base['header']:
        package = f'python{env.base["series"]}-dev'
        raise Problem(
            f'{env.base["executable"]} lacks Python.h, to compile mmcv with.\n'
            f'Install it (Debian: apt-get install {package}; Fedora: dnf '
            'install\npython3-devel), or choose another Python with '
            'CLUSTR_MM_PYTHON.'
        )


def install_tools(env):
    """a virtual environment and build tools"""
    env.reset()
    env.run(env.base['executable'], '-m', 'venv', env.venv)
    env.pip('install', '-r', env.files['build.txt'])


def install_torch(env):
    """torch and torchvision, which take 5 GB"""
    index = setting('CLUSTR_MM_TORCH_INDEX')
    index = ['--extra-index-url', index] if index else []
    torch = shlex.split(setting('CLUSTR_MM_TORCH'))
    env.pip('install', *index, *(torch or ['-r', env.files['torch.txt']]))


def install_libraries(env):
    """libraries and test tools"""
    files = [env.files[name] for name in ('runtime.txt', 'tests.txt')]
    env.pip('install', '-r', files[0], '-r', files[1])


def compile_wheels(env):
    """mmcv's operators, which take ten minutes to compile on two cores"""
    for requirement, folder in wheels(env):
        if folder.exists():
            say(f'      {requirement} was compiled before')
            continue
        say(f'      compiling {requirement}')
        partial = folder.with_name('partial')
        remove(partial)
        # pip's own cache forgets for which torch a wheel was compiled.
        options = ['--no-cache-dir', '--no-binary=:all:', *UNASSISTED]
        env.pip('wheel', *options, '-w', partial, requirement)
        os.sync()
        partial.rename(folder)


def wheels(env):
    """Requirements to compile, and the folders of the cache they go to."""
    torch, error = ask(env.python, '-c', TORCH_BUILD)
    if error:
        raise Problem(f'torch is installed but does not import: {error}')
    for line in env.files['compiled.txt'].read_text().splitlines():
        if not line.startswith('#') and not (env.mmcv and 'mmcv' in line):
            name = '-'.join([env.base['tag'], 'torch', torch, line])
            yield line, env.cache / 'wheels' / name


def install_mm(env):
    """mmengine, mmcv and the toolboxes"""
    paths = [path for _, folder in wheels(env) for path in folder.iterdir()]
    paths += [env.mmcv] if env.mmcv else []
    env.pip('install', *UNASSISTED, *paths, '-r', env.files['mm.txt'])


def check_imports(env):
    """a trial import of all of them"""
    env.run(env.python, '-c', IMPORT, *ESSENTIAL, *THE_REST)
    for line in env.lines():
        if line.startswith('imported ') and line.count(' ') > 1:
            say(line.replace('imported', '     '))


STEPS = (
    install_tools,
    install_libraries,  # before torch, which takes their versions as it finds
    install_torch,
    compile_wheels,
    install_mm,
    check_imports,
)
GIGABYTES = {'install_torch': 9, 'compile_wheels': 1}


# ---------------------------------------------------------------- commands


def ready_python(thorough=False):
    given = setting('CLUSTR_MM_ENV')
    if given:
        return given_python(given, thorough)
    env = Environment()
    env.ensure()
    return env.python


def clean():
    if setting('CLUSTR_MM_ENV'):
        raise Problem('CLUSTR_MM_ENV is set: its environment is not removed.')
    env = Environment()
    env.folder.mkdir(parents=True, exist_ok=True)
    with lock(env):
        env.reset()
        remove(env.folder)
    say(f'Removed {env.folder}; compiled wheels are kept beside it.')


def main(command='', *args):
    if command == 'env':
        say(f'Environment: {ready_python(thorough=True)}')
    elif command == 'path':
        print(ready_python())
    elif command == 'run':
        python = ready_python()
        os.execv(python, [python, *args])
    elif command == 'clean':
        clean()
    else:
        raise Problem(__doc__)


def interrupt(*_):
    raise KeyboardInterrupt


if __name__ == '__main__':
    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    try:
        main(*sys.argv[1:])
    except Problem as problem:
        sys.exit(f'\n{problem}')
    except OSError as error:
        sys.exit(f'{error}\nCLUSTR_MM_CACHE chooses the folder to work in.')
    except KeyboardInterrupt:
        say('\nInterrupted. The same command goes on where this one stopped.')
        sys.exit(130)
