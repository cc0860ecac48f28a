"""Runs tools in forks of one process, which has imported what they need.

A tool takes seconds to import the toolboxes, and often less to do its work. A
fork has registries, a current directory, an environment and threads of its
own, like the process that a user starts. Requests and replies are lines of
JSON.
"""

import json
import os
import runpy
import signal
import sys
import tempfile
import traceback

# What the toolboxes print while they are imported is no reply.
REPLIES = os.fdopen(os.dup(1), 'w')
os.dup2(2, 1)

# ruff: noqa: E402
import torch
from mmengine.runner import runner

import clustr_mm.export
import clustr_mm.runs.launch
import clustr_mm.runs.smoke
import clustr_mm.swap.swapping
import clustr_mm.training.distillation
import clustr_mm.training.soft_extract
import clustr_mm.training.sparsification
import clustr_mm.visualization.gallery  # noqa: F401


def exit_status(tool: str) -> int:
    """Run a tool, and end as the interpreter would."""
    try:
        runpy.run_path(tool, run_name='__main__')
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def become(
    tool: str,
    args: list[str],
    cwd: str,
    environment: dict[str, str],
    log: int,
    seconds: int,
):
    """In the fork: run the tool and leave nothing behind."""
    os.setpgid(0, 0)
    signal.alarm(seconds)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [tool, *args]
    sys.path[0] = os.path.dirname(tool)
    status = exit_status(tool)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def serve():
    torch.set_num_threads(1)  # a fork cannot use its parent's
    # Runs compilers to ask for their versions: as long as all the rest.
    environment = runner.collect_env()
    runner.collect_env = lambda: environment
    print(json.dumps('ready'), file=REPLIES, flush=True)
    for line in sys.stdin:
        with tempfile.TemporaryFile() as log:
            child = os.fork()
            if not child:
                become(**json.loads(line), log=log.fileno())
            _, status = os.waitpid(child, 0)
            log.seek(0)
            text = log.read().decode(errors='replace')
        reply = os.waitstatus_to_exitcode(status), text
        print(json.dumps(reply), file=REPLIES, flush=True)


if __name__ == '__main__':
    serve()
