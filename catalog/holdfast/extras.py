"""The packages that only an extra of the distribution installs, and the error if one is missing.

`docs/reference/requirements.md` lists the extras. A module that needs such a package is imported on first
use, in a block of `needs`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from holdfast.errors import BadInput

Extra = Literal["console", "delta", "iceberg", "ingest", "pandas", "postgres", "s3", "spark", "sql"]

_PACKAGES: Final[dict[Extra, tuple[str, ...]]] = {
    "console": ("aiohttp", "jinja2", "markupsafe"),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg", "sqlalchemy"),
    "ingest": ("confluent_kafka", "fastavro", "cramjam", "yaml"),
    "pandas": ("pandas",),
    "postgres": ("psycopg", "psycopg_pool"),
    "s3": ("boto3", "botocore"),
    "spark": ("pyspark", "pandas"),
    "sql": ("duckdb", "fsspec"),
}
"""The modules of each extra, by the names under which they are imported."""


@contextmanager
def needs(extra: Extra, what: str) -> Iterator[None]:
    """For a block that imports packages of an extra: `what` names what needs them.

    Raises `BadInput`, with the command that installs the extra, if a package is missing or can't be imported.
    """
    try:
        yield
    except ImportError as error:
        # psycopg raises an error without a name if it finds no libpq.
        module = (error.name or "").partition(".")[0]
        if module and module not in _PACKAGES[extra]:
            raise
        raise BadInput(
            f"{what} needs {module or _PACKAGES[extra][0]}, which is not installed",
            hint=f"pip install 'holdfast[{extra}]'",
        ) from None
