"""What an export to an Iceberg or a Delta table returns."""

from dataclasses import dataclass
from typing import Final

from holdfast.errors import BadInput

FORMATS: Final = ("parquet", "iceberg", "delta")
"""What a table can be exported to."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The contents that a table of another format has: as of which time, and how many rows.

    `version` is the version of the Delta table, or the id of the Iceberg snapshot, that has them.
    """

    target: str
    as_of: int
    rows: int
    version: int


def check_format(form: str) -> str:
    """Return the format of an export. Raises `BadInput` for an unknown one."""
    if form not in FORMATS:
        raise BadInput(f"format must be one of {', '.join(FORMATS)}, not {form!r}")
    return form
