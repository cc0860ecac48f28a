"""Arguments of the wrong type or size, refused by name."""

import argparse
import functools
import inspect
import types
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, Union, get_args, get_origin, get_type_hints


def check_types(function: Callable) -> Callable:
    """Have a constructor raise a `TypeError` for what its hints rule out.

    Values come from configs and command lines, where a letter too many makes
    a string of a number. Without this, it would be found where the value is
    first used, by a message that does not name it.
    """
    parameters = inspect.signature(function).parameters
    names = list(parameters)[1:]
    is_open = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    hints = get_type_hints(function)

    @functools.wraps(function)
    def checked(self, *args, **kwargs):
        for name, value in {**dict(zip(names, args)), **kwargs}.items():
            if name not in parameters and not is_open:
                raise TypeError(_unknown(type(self), name))
            if name in hints and not fits(value, hints[name]):
                raise TypeError(
                    f'{name} of {type(self).__name__} must be '
                    f'{_in_words(hints[name])}, not {value!r}'
                )
        return function(self, *args, **kwargs)

    return checked


def _unknown(kind: type, name: str) -> str:
    """What to say of an argument that no constructor of a class takes."""
    known = {
        parameter
        for base in kind.__mro__
        for parameter in inspect.signature(base.__init__).parameters
    } - {'self', 'args', 'kwargs'}
    close = get_close_matches(name, known, 1)
    hint = f'did you mean {close[0]}?' if close else f'it has {sorted(known)}'
    return f'{kind.__name__} has no option {name}: {hint}'


def fits(value: Any, hint: Any) -> bool:
    """Whether a type hint allows a value; configs write lists for tuples."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return any(fits(value, part) for part in parts)
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
            return len(value) == len(parts) and all(map(fits, value, parts))
        return all(fits(v, part) for v in value for part in parts[:1])
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
            raise argparse.ArgumentError(self, 'takes a height and a width')
        setattr(namespace, self.dest, (values[0], values[-1]))
