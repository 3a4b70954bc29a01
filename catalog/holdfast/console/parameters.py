"""What comes in the address of a page: checked, and bounded in size."""

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from holdfast.errors import BadInput

MOST_PARAMETERS: Final = 40
MOST_CHARACTERS: Final = 2000
MOST_NAME: Final = 255


def check_size(request: web.Request) -> None:
    """Raise `BadInput` if the address has more than a page can need."""
    if len(request.query) > MOST_PARAMETERS:
        raise BadInput(
            f"the address has {len(request.query)} parameters, at most {MOST_PARAMETERS} are allowed"
        )
    for name, value in request.query.items():
        if len(name) > MOST_NAME or len(value) > MOST_CHARACTERS:
            raise BadInput(f"parameter {name[:40]!r} is longer than {MOST_CHARACTERS} characters")
    for value in request.match_info.values():
        if len(value) > MOST_NAME:
            raise BadInput(f"a name in the address is longer than {MOST_NAME} characters")


def text(request: web.Request, name: str, default: str = "") -> str:
    """A parameter as text, without spaces around it."""
    return str(request.query.get(name, default)).strip()


def choice(request: web.Request, name: str, choices: Sequence[str]) -> str:
    """A parameter that is one of `choices`, or the first of them if it is missing.

    Raises `BadInput` for another value.
    """
    given = text(request, name) or choices[0]
    if given not in choices:
        known = ", ".join(each for each in choices if each)
        raise BadInput(f"{name} {given[:40]!r} is not known", hint=f"it is one of {known}")
    return given


def whole(request: web.Request, name: str, default: int, *, most: int) -> int:
    """A parameter that is an integer from 0 to `most`. Raises `BadInput` for another value."""
    given = text(request, name)
    if not given:
        return default
    if not (given.isascii() and given.isdigit() and len(given) <= 20 and int(given) <= most):
        raise BadInput(f"{name} {given[:40]!r} is no number", hint=f"it is one from 0 to {most}")
    return int(given)
