"""Give a tool something bad, and judge how it ends."""

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.runs import ROOT, TOOLS

# What a tool writes while it still knows of nothing bad.
LOGS = ('work', 'work_dirs')
# A message that tells what to do, or what would have been right.
ADVICE = re.compile(
    r'\b(must|choose|take|takes|needs?|lacks|expected|invalid choice|required'
    r'|there (is|are) (no|none)|does not exist|use|give|name|say|copy|pass'
    r'|invalid|did you mean|unrecognized|instead|whole number|look at|check'
    r'|mend|outside of|not one of)\b',
    re.IGNORECASE,
)
LONGEST = 1500  # characters of a paragraph; some list all choices


@dataclass
class Outcome:
    status: int
    text: str

    @property
    def message(self) -> str:
        """What follows the last word "error:" at the start of a line."""
        return re.split(r'(?m)^(?:\S+\.py(?: \w+)?: )?error: ', self.text)[-1]


class ForkServer:
    """Runs tools quickly; see fork_server.py."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, '-m', 'tests.bad_inputs.fork_server'],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert json.loads(self._process.stdout.readline()) == 'ready'

    def run(self, tool: str, args, cwd, seconds: int = 60) -> Outcome:
        request = dict(
            tool=str(TOOLS / tool),
            args=[str(a) for a in args],
            cwd=str(cwd),
            seconds=seconds,
        )
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return Outcome(**json.loads(self._process.stdout.readline()))

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def run_process(tool: str, args, cwd) -> Outcome:
    """As a user does it, in 5 seconds more."""
    done = subprocess.run(
        [sys.executable, str(TOOLS / tool), *map(str, args)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return Outcome(done.returncode, done.stdout)


def fingerprint(folder: Path) -> dict[str, str]:
    """Names and contents of all files in a folder, logs aside."""
    found = {}
    for path in sorted(folder.rglob('*')):
        name = path.relative_to(folder)
        if name.parts[0] in LOGS or '__pycache__' in name.parts:
            continue
        if path.is_file():
            found[str(name)] = hashlib.md5(path.read_bytes()).hexdigest()
    return found


def judge(outcome: Outcome, names=()) -> list[str]:
    """What is wrong with the way in which a tool refused its input."""
    message = outcome.message
    faults = []
    if outcome.status not in (1, 2):
        faults.append(f'status {outcome.status}')
    if 'Traceback (most recent call last)' in outcome.text:
        faults.append('a traceback')
    if message == outcome.text:
        faults.append('no "error:"')
    if re.search(r'\n\s*\n', message.strip()):
        faults.append('more than a paragraph')
    if not 20 < len(message) <= LONGEST or message.count('\n') > 8:
        faults.append(f'{len(message)} characters')
    for name in names:
        if str(name) not in message:
            faults.append(f'no {str(name)!r} in it')
    if not ADVICE.search(message):
        faults.append('nothing to do')
    return faults
