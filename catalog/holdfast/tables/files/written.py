"""Records which files were written to a table, so that the same file isn't added twice by mistake."""

from pathlib import Path
from typing import Final

from holdfast.collections.record.jobs import Json
from holdfast.tables.files.source import RowSource

WRITE: Final = "write"
"""The kind of the jobs that record which files were written. The slot is the XXH3-128 of the contents."""


def record_of_file(source: RowSource, updates: int, host: str) -> tuple[Json, Json]:
    """The spec and the result of the job that records a file with this number of updates."""
    return {"file": Path(source.name).name, "bytes": source.size_bytes}, {"updates": updates, "host": host}
