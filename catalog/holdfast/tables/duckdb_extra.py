"""DuckDB, which the extra `sql` installs: its import, and its errors as errors of Holdfast."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from holdfast.errors import BadInput, HoldfastError
from holdfast.extras import needs

if TYPE_CHECKING:
    import types

_EARLIEST: Final = 2
_INTERRUPTED: Final = "Query interrupted"


def import_duckdb(what: str) -> "types.ModuleType":
    """DuckDB. Raises `BadInput`, which says what needs it, if it isn't installed, or too old.

    Earlier versions would let Arrow evaluate conditions on floats, where NaN means something else to it.
    """
    with needs("sql", what):
        import duckdb
    if int(duckdb.__version__.partition(".")[0]) < _EARLIEST:
        raise BadInput(
            f"{what} needs DuckDB {_EARLIEST}, and {duckdb.__version__} is installed",
            hint="pip install 'holdfast[sql]'",
        )
    return duckdb


@contextmanager
def telling(missing: str = "") -> Iterator[None]:
    """Raise errors of DuckDB as `BadInput` if the query is wrong, and else as `HoldfastError`.

    If Ctrl-C interrupts the query, raise `KeyboardInterrupt`, as Python does. `missing` is the hint for a
    query that names something that isn't there.
    """
    import duckdb

    try:
        yield
    except (duckdb.ProgrammingError, duckdb.DataError, duckdb.NotSupportedError) as error:
        hint = missing if isinstance(error, duckdb.CatalogException) else ""
        raise BadInput(f"sql: {first_line(error)}", hint=hint) from None
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    except RuntimeError as error:
        if str(error) != _INTERRUPTED:
            raise
        raise KeyboardInterrupt from None
    except duckdb.Error as error:
        raise HoldfastError(f"DuckDB can't run this query: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    """The first line of an error's text: the others show the query."""
    return str(error).partition("\n")[0]
