"""Which processor this is."""

import platform
from functools import cache
from pathlib import Path

_CPUINFO = Path('/proc/cpuinfo')


@cache
def _facts() -> dict[str, str]:
    """What Linux says of a core, by its names for it."""
    try:
        text = _CPUINFO.read_text()
    except OSError:
        return {}
    pairs = (line.partition(':') for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def vendor() -> str:
    """Such as 'AuthenticAMD' or 'GenuineIntel', which other systems put last
    in a line of more; '' if nobody knows."""
    return _facts().get('vendor_id') or platform.processor()


def family() -> int:
    """Its generation, by its maker's count; 0 if nobody knows."""
    return int(_facts().get('cpu family', 0))


def name() -> str:
    """As a person would say it, such as 'AMD EPYC 7763'."""
    return _facts().get('model name') or platform.processor() or 'unknown'
