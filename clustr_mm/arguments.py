"""Arguments of the wrong type or size, refused by name."""

import argparse
import functools
import inspect
import re
import traceback
import types
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from typing import (
    Any,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

_F = TypeVar('_F', bound=Callable)


def check_types(function: _F) -> _F:
    """Have a constructor or a function raise a `TypeError` for what its hints
    rule out.

    Values come from configs and command lines, where a letter too many makes
    a string of a number. Without this, it would be found where the value is
    first used, by a message that does not name it.
    """
    parameters = inspect.signature(function).parameters
    names = list(parameters)
    is_method = names[0] == 'self'
    is_open = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    hints = get_type_hints(function)

    @functools.wraps(function)
    def checked(*args, **kwargs):
        owner = type(args[0]) if is_method else function
        for name, value in {**dict(zip(names, args)), **kwargs}.items():
            if is_method and name not in parameters and not is_open:
                raise TypeError(unknown_option(owner, name))
            if name in hints and not allows(hints[name], value):
                raise TypeError(
                    f'{name} of {owner.__name__} must be '
                    f'{_in_words(hints[name])}, not {value!r}'
                )
        return function(*args, **kwargs)

    return checked


def unknown_option(kind: type, name: str) -> str:
    """What to say of an argument that no constructor of a class takes."""
    known = {
        parameter
        for base in kind.__mro__
        for parameter in inspect.signature(base.__init__).parameters
    } - {'self', 'args', 'kwargs'}
    return f'{kind.__name__} has no option {name}: {nearest(name, known)}'


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say of a name that is none of those known."""
    known = {other.lower(): other for other in known}
    close = get_close_matches(name.lower(), known, 1)
    if close:
        return f'did you mean {known[close[0]]}?'
    return f'choose from {", ".join(sorted(known.values()))}'


def refused_option(error: BaseException) -> str | None:
    """What to say of an error of somebody else's constructor, if it was given
    an argument that it does not take."""
    found = re.match(
        r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'",
        str(error),
    )
    if not found:
        return None
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    for value in (*frame.f_locals.values(), *frame.f_globals.values()):
        kind = value if isinstance(value, type) else type(value)
        if found[1] in [base.__name__ for base in kind.__mro__]:
            return unknown_option(kind, found[2])
    return None


def allows(hint: Any, value: Any) -> bool:
    """Whether a type hint allows a value; configs write lists for tuples."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return any(allows(part, value) for part in parts)
    if hint is Any:
        return True
    if hint is bool:
        return value in (True, False)
    if hint in (int, float):
        kind = Integral if hint is int else Real
        return isinstance(value, kind) and not isinstance(value, bool)
    if hint is Sequence or origin in (Sequence, tuple, list):
        if not isinstance(value, Sequence) or isinstance(value, str):
            return False
        if origin is tuple and Ellipsis not in parts:
            return len(value) == len(parts) and all(map(allows, parts, value))
        return all(allows(part, v) for v in value for part in parts[:1])
    return isinstance(value, origin or hint)


def _in_words(hint: Any) -> str:
    if isinstance(hint, type) and not get_args(hint):
        return f'of type {hint.__name__}'
    return 'of type ' + str(hint).replace('collections.abc.', '')


def check_positive(**numbers: float) -> None:
    """Raise a `ValueError` for a number that is not above 0."""
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f'{name} must be above 0, not {number}')


def check_rates(**rates: float) -> None:
    """Raise a `ValueError` for what is no probability."""
    for name, rate in rates.items():
        if not 0 <= rate < 1:
            raise ValueError(
                f'{name} must be from 0 to below 1, as it is the probability '
                f'of dropping something, not {rate}'
            )


def check_shares(**shares: float) -> None:
    """Raise a `ValueError` for what is no share of a whole."""
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ValueError(f'{name} is a share from 0 to 1, not {share}')


def number(kind: type, least: float = 0) -> Callable[[str], Any]:
    """A type for `argparse`: whole numbers from ``least`` on, or any above.

    Args:
        kind (type): int or float.
        least (float): The first whole number, or what others must exceed.
    """

    def parse(text: str):
        try:
            value = kind(text)
        except ValueError:
            value = float('nan')
        fitting = value >= least if kind is int else least < value < 1e30
        if not fitting:
            expected = (
                f'a whole number from {least} on'
                if kind is int
                else f'a number above {least}'
            )
            raise argparse.ArgumentTypeError(
                f'must be {expected}, not {text!r}'
            )
        return value

    return parse


def add_shape(
    parser: argparse.ArgumentParser,
    default: tuple[int, int] | None = None,
    help: str = 'of the image; by default what the config is made for',
) -> None:
    """Have a command take ``--shape HEIGHT WIDTH``, or one number for both."""
    parser.add_argument(
        '--shape',
        type=number(int, 1),
        nargs='+',
        action=_HeightAndWidth,
        default=default,
        metavar=('HEIGHT', 'WIDTH'),
        help=help,
    )


class _HeightAndWidth(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        if len(values) > 2:
            raise argparse.ArgumentError(
                self,
                'must be a height and a width, or one number for both, not '
                + ' '.join(map(str, values)),
            )
        setattr(namespace, self.dest, (values[0], values[-1]))
