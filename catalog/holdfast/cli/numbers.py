"""Numbers in options."""

import click

_LIMIT = 1 << 64


def u64(given: str | int) -> int:
    """An integer in [0, 2^64). Raises `click.BadParameter` for anything else."""
    try:
        number = int(given)
    except ValueError:
        number = -1
    if 0 <= number < _LIMIT:
        return number
    raise click.BadParameter(f"{str(given)[:40]!r} is not an integer from 0 to 2^64 - 1")
