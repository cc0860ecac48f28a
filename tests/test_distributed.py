"""Several processes and hosts train as one does, and end together."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from clustr_mm.datasets import make_shapes
from tests.held import children, is_running
from tests.runs import ROOT, TOOLS, run

LAUNCH = (sys.executable, '-m', 'torch.distributed.run')
CONFIG = ROOT / 'configs/quickstart/hvt_shapes.py'


@pytest.mark.parametrize('processes', [2, 4])
def test_gradients_are_those_of_one_process(processes):
    text = run(
        *LAUNCH,
        f'--master_port={29540 + processes}',
        f'--nproc_per_node={processes}',
        *('-m', 'tests.gradients_worker'),
        cwd=ROOT,
        OMP_NUM_THREADS='1',
    )
    errors = dict(re.findall(r'^(\w.*): (\S+e-\d+)$', text, re.M))
    assert len(errors) == 8, text[-3000:]
    assert all(float(error) < 1e-4 for error in errors.values()), errors


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
        PORT='29551',
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
        # When all is done, torch's launcher on the first host now and then
        # waits in vain for the other's farewell: for 300 seconds.
        codes = [process.wait(400) for process, _ in started]
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
