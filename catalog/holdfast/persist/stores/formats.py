"""Decides by the format version in a frame whether this version of Holdfast can read it.

All formats from `OLDEST` on are readable. A format is never guessed.
"""

from typing import Final

from holdfast.errors import Deprecated, VersionTooNew

OLDEST: Final = 1
"""Every released format of persist is still readable."""


def check_format(version: int, newest: int, *, where: str, what: str = "format") -> None:
    """Raise an error if this Holdfast can't read format `version` of the data at `where`.

    Raises:
        VersionTooNew: the version is newer than `newest`.
        Deprecated: the version is older than `OLDEST`.
    """
    if version > newest:
        raise VersionTooNew(f"{where} has {what} {version}, this Holdfast reads up to {newest}")
    if version < OLDEST:
        raise Deprecated(f"{where} has {what} {version}, this Holdfast reads from {OLDEST} on")
