"""Run commands as a user does, and tools in processes of their own."""

import atexit
import json
import os
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / 'tools'


def run(*command, cwd, ok=True, timeout=600, **environment):
    """Run a command; return what it printed, errors included."""
    result = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env={**os.environ, 'PYTHON': sys.executable, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert (result.returncode == 0) == ok, result.stdout[-5000:]
    return result.stdout


class ForkServer:
    """Runs tools quickly; see fork_server.py."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, '-m', 'tests.fork_server'],
            cwd=ROOT,
            # Output is buffered, as it is wherever nobody asks otherwise.
            env={**os.environ, 'PYTHONUNBUFFERED': ''},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        atexit.register(self._close)
        assert json.loads(self._process.stdout.readline()) == 'ready'

    def run(
        self, tool: str, args, cwd, seconds: int = 60, **environment
    ) -> tuple[int, str]:
        """Returns: The exit status, and what was printed."""
        request = dict(
            tool=str(TOOLS / tool),
            args=[str(a) for a in args],
            cwd=str(cwd),
            environment={**os.environ, **environment},
            seconds=seconds,
        )
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return tuple(json.loads(self._process.stdout.readline()))

    def _close(self):
        self._process.stdin.close()
        self._process.wait()


@cache
def fork_server() -> ForkServer:
    return ForkServer()


def run_tool(name, *args, cwd, ok=True, **environment):
    """Run a tool in a fork; return what it printed, errors included."""
    if torch.cuda.is_available():  # which no fork can use
        command = (sys.executable, TOOLS / name, *args)
        return run(*command, cwd=cwd, ok=ok, **environment)
    status, text = fork_server().run(name, args, cwd, 600, **environment)
    assert (status == 0) == ok, text[-5000:]
    return text


def free_port() -> str:
    """One that no test in another process has, either."""
    with socket.create_server(('127.0.0.1', 0)) as server:
        return str(server.getsockname()[1])


def wait_for(happened, process, log):
    """Wait until a process that writes a log has come to something."""
    end = time.monotonic() + 120
    while not happened():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.002)
