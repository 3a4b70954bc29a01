"""The formats of files with rows, and the format of a file by its suffix."""

import sys
from pathlib import Path
from typing import Final

from holdfast.errors import BadInput

FILE_FORMATS: Final = ("csv", "json", "parquet", "arrow")
FORMATS_SHOWN: Final = "|".join(FILE_FORMATS)
_SUFFIXES: Final = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
}


def check_file(file: Path, form: str | None) -> None:
    """Raise `BadInput` if the file can't be read, or if its format is not known."""
    if str(file) == "-" and sys.stdin.isatty():
        raise BadInput("standard input is a terminal", hint="give a FILE, or pipe the rows into the command")
    if form is None and str(file) == "-":
        raise BadInput("can't find out the format of standard input", hint=f"give --format {FORMATS_SHOWN}")
    if form is None:
        format_by_suffix(file)
    try:
        if str(file) != "-":
            file.open("rb").close()
    except OSError as error:
        raise BadInput(f"can't read {file}: {error.strerror or error}") from error


def format_by_suffix(file: Path) -> str:
    """The format of a file by its suffix. Raises `BadInput` if the suffix is not known."""
    form = _SUFFIXES.get(file.suffix.lower())
    if form is None:
        raise BadInput(f"the name of {file} doesn't show its format", hint=f"give --format {FORMATS_SHOWN}")
    return form
