"""Several processes and hosts train as one does, and end together."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from clustr_mm.shapes import make_shapes
from tests.resource_usage import children, is_running
from tests.runs import ROOT, TOOLS, free_port, run

LAUNCH = (sys.executable, '-m', 'torch.distributed.run')
CONFIG = ROOT / 'configs/quickstart/hvt_shapes.py'


@pytest.mark.parametrize('processes', [2, 4])
def test_gradients_are_those_of_one_process(tmp_path, processes):
    found = tmp_path / 'errors.json'
    run(
        *LAUNCH,
        f'--master_port={free_port()}',
        f'--nproc_per_node={processes}',
        *('-m', 'tests.gradients_worker', found),
        cwd=ROOT,
        OMP_NUM_THREADS='1',
    )
    errors = json.loads(found.read_text())
    assert len(errors) == 8
    assert max(errors.values()) < 1e-4, errors


@pytest.fixture(scope='module')
def options(tmp_path_factory):
    data = make_shapes(
        'classification', tmp_path_factory.mktemp('data'), num=40, size=64
    )
    return [
        *('--data-root', data, '--work-dir', 'work', '--cfg-options'),
        'default_hooks.logger.interval=1',
        'train_dataloader.batch_size=2',
        'train_dataloader.num_workers=0',
        'val_dataloader.num_workers=0',
    ]


def start(command, cwd, **environment):
    """Start a command that logs to a file in ``cwd``."""
    log = cwd / 'log'
    with log.open('w') as file:
        process = subprocess.Popen(
            [str(c) for c in command],
            cwd=cwd,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                'PYTHON': sys.executable,
                'OMP_NUM_THREADS': '1',
                **environment,
            },
        )
    return process, log


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='/proc')
def test_run_ends_when_a_process_dies(options, tmp_path):
    launcher, log = start(
        [TOOLS / 'dist_train.sh', CONFIG, 2, *options],
        tmp_path,
        PORT=free_port(),
    )
    try:
        deadline = time.monotonic() + 120
        while 'Epoch(train)' not in log.read_text():
            assert launcher.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.2)
        workers = children(launcher.pid)
        assert len(workers) == 2
        os.kill(workers[1], signal.SIGKILL)
        assert launcher.wait(60) != 0
    finally:
        launcher.kill()
    text = log.read_text()
    assert f'Signal 9 (SIGKILL) received by PID {workers[1]}' in text
    assert not any(map(is_running, workers))


@pytest.mark.parametrize(
    ('args', 'status', 'message'),
    [
        (
            ['no.py', 2],
            1,
            'error: there is no config file no.py: give the path of one\n',
        ),
        (
            [CONFIG, 2, '--resumee'],
            2,
            'error: unrecognized arguments: --resumee\n',
        ),
    ],
)
def test_an_error_is_one_paragraph(args, status, message, tmp_path):
    launcher, log = start(
        [TOOLS / 'dist_train.sh', *args], tmp_path, PORT=free_port()
    )
    assert launcher.wait(120) == status
    text = log.read_text()
    assert text.endswith(message)
    assert text.count('error: ') == 1
    assert 'Traceback' not in text


class TestProcesses:
    """The launcher by itself, of programs that need no import."""

    @pytest.fixture
    def launch(self, tmp_path):
        copy = shutil.copy(TOOLS / '_processes.py', tmp_path)
        started = []

        def launch(program, processes=2, **environment):
            (tmp_path / 'program.py').write_text(
                f'import os, signal, sys, time\n{program}\n'
            )
            process, log = start(
                [sys.executable, copy, processes, 'program.py', 'arg'],
                tmp_path,
                **environment,
            )
            started.append(process)
            return process, log

        yield launch
        for process in started:
            process.kill()

    def test_variables_of_torchrun(self, launch):
        names = [
            *('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE'),
            *('MASTER_ADDR', 'MASTER_PORT'),
        ]
        # In one piece, or the lines of the two processes may mix.
        program = (
            f'values = [os.environ[name] for name in {names}]\n'
            "sys.stdout.write(f'{values} {sys.argv}\\n')"
        )
        process, log = launch(
            program, NNODES='2', NODE_RANK='1', MASTER_ADDR='a', PORT='5'
        )
        assert process.wait(20) == 0
        lines = sorted(log.read_text().splitlines())
        for i, line in enumerate(lines):
            values = [str(2 + i), str(i), '4', '2', 'a', '5']
            assert line.startswith(str(values))
            assert line.endswith(
                "program.py', 'arg', '--launcher', 'pytorch']"
            )
        assert len(lines) == 2

    def test_status_of_the_first_that_fails(self, launch):
        wait = "if os.environ['RANK'] == '0': time.sleep(600)\nsys.exit(7)"
        process, _ = launch(wait)
        assert process.wait(20) == 7

    def test_one_that_is_done_does_not_end_the_others(self, launch):
        process, log = launch(
            "time.sleep(int(os.environ['RANK']))\nprint('done')"
        )
        assert process.wait(20) == 0
        assert log.read_text() == 'done\ndone\n'

    @pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
    def test_signals_are_handed_on_once(self, launch, number):
        process, log = launch(
            f'signal.signal({number:d}, lambda *_: print("got", flush=True))\n'
            'print("ready", flush=True)\nsignal.pause()\nsys.exit(130)'
        )
        end = time.monotonic() + 20
        while log.read_text().count('ready') < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(20) == 130
        assert log.read_text().count('got') == 2


@pytest.fixture
def hosts():
    """Two network namespaces with a cable between them."""
    if os.geteuid() != 0 or not shutil.which('ip'):
        pytest.skip('needs root and ip to make two hosts of one')
    names, prefix = ['clustr_mm_a', 'clustr_mm_b'], '10.213.0'

    def ip(*args, check=True):
        subprocess.run(['ip', *args], check=check, capture_output=True)

    for name in names:
        ip('netns', 'del', name, check=False)
    try:
        for name in names:
            ip('netns', 'add', name)
        ip('link', 'add', 'cable_a', 'netns', names[0], 'type', 'veth',
           'peer', 'name', 'cable_b', 'netns', names[1])  # fmt: skip
    except subprocess.CalledProcessError as error:
        pytest.skip(f'no network namespaces here: {error.stderr.decode()}')
    try:
        for i, (name, end) in enumerate(zip(names, 'ab'), 1):
            inside = ('-n', name)
            ip(
                *inside,
                'addr',
                'add',
                f'{prefix}.{i}/24',
                'dev',
                f'cable_{end}',
            )
            ip(*inside, 'link', 'set', f'cable_{end}', 'up')
            ip(*inside, 'link', 'set', 'lo', 'up')
        yield names, f'{prefix}.1'
    finally:
        for name in names:
            ip('netns', 'del', name)


@pytest.mark.slow
def test_two_hosts(hosts, options, tmp_path):
    """dist_train.sh as the README has it on each of two hosts."""
    names, address = hosts
    started = []
    for rank, name in enumerate(names):
        cwd = tmp_path / name
        cwd.mkdir()
        command = ['ip', 'netns', 'exec', name, TOOLS / 'dist_train.sh']
        started.append(
            start(
                [*command, CONFIG, 1, *options, 'train_cfg.max_epochs=1'],
                cwd,
                NNODES='2',
                NODE_RANK=str(rank),
                MASTER_ADDR=address,
                PORT='29561',
                GLOO_SOCKET_IFNAME=f'cable_{"ab"[rank]}',
            )
        )
    try:
        codes = [process.wait(120) for process, _ in started]
    finally:
        for process, _ in started:
            process.kill()
    first = started[0][1].read_text()
    assert codes == [0, 0], first[-3000:]
    # Each host trains on half of the 32 pictures, two at a time.
    assert 'Epoch(train) [1][8/8]' in first
    assert re.search(r'accuracy/top1: [\d.]+', first)
    assert (tmp_path / names[0] / 'work/epoch_1.pth').is_file()
    assert not (tmp_path / names[1] / 'work/epoch_1.pth').exists()
