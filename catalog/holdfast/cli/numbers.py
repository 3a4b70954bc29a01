"""Numbers as options."""

import click

_LIMIT = 1 << 64


def u64(given: str | int) -> int:
    """The integer in [0, 2^64); `click.BadParameter` for anything else."""
    try:
        number = int(given)
    except ValueError:
        number = -1
    if 0 <= number < _LIMIT:
        return number
    raise click.BadParameter(f"{str(given)[:40]!r} is no integer in the range from 0 to 2^64 - 1")
