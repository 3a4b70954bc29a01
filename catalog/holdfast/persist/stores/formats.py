"""Whether this version reads what another one wrote, by the format version that stands in every frame.

Older formats are read from `OLDEST` on; a format is never guessed.
"""

from typing import Final

from holdfast.errors import Deprecated, VersionTooNew

OLDEST: Final = 1
"""Every format of persist that was ever released is still read."""


def check_format(version: int, newest: int, *, where: str, what: str = "format") -> None:
    """Refuse what stands at `where` in a `version` of its format that this Holdfast does not read.

    Raises:
        VersionTooNew: it is newer than `newest`.
        Deprecated: it is older than `OLDEST`.
    """
    if version > newest:
        raise VersionTooNew(f"{where} has {what} {version}, this Holdfast reads up to {newest}")
    if version < OLDEST:
        raise Deprecated(f"{where} has {what} {version}, this Holdfast reads from {OLDEST} on")
