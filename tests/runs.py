"""Run the tools as a user does: in processes of their own."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / 'tools'


def run(*command, cwd, ok=True, **environment):
    """Run a command; return what it printed, errors included."""
    result = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env={**os.environ, 'PYTHON': sys.executable, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert (result.returncode == 0) == ok, result.stdout[-5000:]
    return result.stdout


def run_tool(name, *args, **options):
    return run(sys.executable, TOOLS / name, *args, **options)


def wait_for(happened, process, log):
    """Wait until a process that writes a log has come to something."""
    end = time.monotonic() + 120
    while not happened():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.002)
