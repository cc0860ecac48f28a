"""Give a tool something bad, and judge how it ends."""

import hashlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.runs import TOOLS, fork_server

# What a tool writes while it still knows of nothing bad.
LOGS = ('work', 'work_dirs')
# What to do: a verb where a clause begins, and what to do it with.
VERBS = (
    'add|check|choose|convert|copy|download|give|install|leave out|link'
    '|look at|mend|move|name|override|pass|put|remove|replace|say by|say so'
    '|set|take|use'
)
ACT = rf'(?:^|[:;,.)] |\b(?:or|and|please) )(?:{VERBS}) \S'
# What would have been right.
RIGHT = (
    r'\b(?:must|should|has to|needs? to) (?:not )?(?:be|end|give|lie) \S'
    r'|\b(?:one of|choose from|did you mean|expected|it needs) \S'
    r'|\bfrom \S+ (?:on|to \S+)|\btakes [A-Z]+=|\binvalid \w+ value'
    r'|\barguments are required: \S'
    # Below the usage, which has all options.
    r'|\bunrecognized arguments: -'
)
ADVICE = re.compile(f'{ACT}|{RIGHT}', re.IGNORECASE)
# In somebody else's words: at least where in the code that was said.
PLACE = r'\([^()]+:\d+\)'
# What is said whatever is wrong tells nothing.
EMPTY = re.compile(r'Mend the config(?: or that file)?[.;]')
LONGEST = 1500  # characters of a paragraph; some list all choices


@dataclass
class Outcome:
    status: int
    text: str

    @property
    def message(self) -> str:
        """What follows the last word "error:" at the start of a line."""
        return re.split(r'(?m)^(?:\S+\.py(?: \w+)?: )?error: ', self.text)[-1]


def run_fork(tool: str, args, cwd, **environment) -> Outcome:
    """Quickly; see tests/fork_server.py."""
    return Outcome(*fork_server().run(tool, args, cwd, **environment))


def run_process(tool: str, args, cwd, **environment) -> Outcome:
    """As a user does it, in 5 seconds more."""
    done = subprocess.run(
        [sys.executable, str(TOOLS / tool), *map(str, args)],
        cwd=cwd,
        env={**os.environ, **environment},
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


def names_it(message: str, name: str) -> bool:
    """Whether a message has a name as words of its own.

    Not as a part of others, nor of a dotted path that is repeated as the user
    wrote it: what is wrong with `model.backbone.keep=2` is its `keep`.
    """
    before = r'(?<![\w.])' if name[:1].isalnum() else ''
    after = r'(?!\w)' if name[-1:].isalnum() else ''
    return bool(re.search(before + re.escape(name) + after, message))


def judge(outcome: Outcome, names=(), advice=ADVICE) -> list[str]:
    """What is wrong with the way in which a tool refused its input."""
    message = outcome.message
    faults = []
    if outcome.status not in (1, 2):
        faults.append(f'status {outcome.status}')
    if 'Traceback (most recent call last)' in outcome.text:
        faults.append('a traceback')
    if message == outcome.text:
        faults.append('no "error:"')
    if outcome.status == 2 and 'usage: ' not in outcome.text:
        faults.append('no usage')
    if re.search(r'\n\s*\n', message.strip()):
        faults.append('more than a paragraph')
    if not 20 < len(message) <= LONGEST or message.count('\n') > 8:
        faults.append(f'{len(message)} characters')
    for name in names:
        if not names_it(message, name):
            faults.append(f'no {name!r} in it')
    if not re.search(advice, EMPTY.sub('', message)):
        faults.append('nothing to do')
    return faults
