"""DuckDB, which the extra `sql` installs: its import, and its errors as errors of Holdfast."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from holdfast.errors import BadInput, HoldfastError
from holdfast.extras import needs

if TYPE_CHECKING:
    import types

_EARLIEST: Final = 2
_INTERRUPTED: Final = re.compile(r"^Query interrupted$|(^|: )KeyboardInterrupt:? *$", re.MULTILINE)
"""How the text of an error ends if Ctrl-C interrupted DuckDB, or Python code that DuckDB called."""
_MOST: Final = 10
_SIMILAR: Final = 0.7
_NO_TABLE: Final = re.compile(r"Table with name (.+) does not exist")
_NO_COLUMN: Final = re.compile(r'does not have a column named "(.+)"')
_SAID: Final = {
    "Did you mean ": "did you mean ",
    "Candidate bindings: ": "similar columns: ",
    "Candidate tables: ": "the tables of the query: ",
    "Either add it ": "either add it ",
}
"""How the second line of an error of DuckDB begins if it says what to do, and how a hint begins then."""


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
def telling(tables: Sequence[str] = (), columns: Sequence[str] = ()) -> Iterator[None]:
    """Raise errors of DuckDB as `BadInput` if the query is wrong, and else as `HoldfastError`.

    If Ctrl-C interrupts the query, raise `KeyboardInterrupt`, as Python does. `tables` are the names of the
    tables of the location, and `columns` those of the columns of the query's tables, for hints.
    """
    import duckdb

    try:
        yield
    except (duckdb.Error, RuntimeError) as error:
        raise_interrupt(error)
        if isinstance(error, duckdb.ProgrammingError | duckdb.DataError | duckdb.NotSupportedError):
            raise BadInput(f"sql: {first_line(error)}", hint=_hint(str(error), tables, columns)) from None
        if isinstance(error, duckdb.Error):
            raise HoldfastError(f"DuckDB can't run this query: {first_line(error)}") from None
        raise


def raise_interrupt(error: Exception) -> None:
    """Raise `KeyboardInterrupt` if this is the error of an interrupted query."""
    import duckdb

    if isinstance(error, duckdb.InterruptException) or _INTERRUPTED.search(str(error)):
        raise KeyboardInterrupt from None


def _hint(text: str, tables: Sequence[str], columns: Sequence[str]) -> str:
    """What an error of DuckDB suggests in its second line, or names that are similar to an unknown one."""
    first, _, rest = text.partition("\n")
    second = rest.partition("\n")[0]
    if unknown := _NO_TABLE.search(first):
        guess = f"did you mean {similar}? " if (similar := _similar(unknown[1], tables)) else ""
        shown = f"{', '.join(tables[:_MOST])}{', ...' if len(tables) > _MOST else ''}" or "there are none"
        return f"{guess}the tables are: {shown}"
    if unknown := _NO_COLUMN.search(first):
        return f"did you mean {similar}?" if (similar := _similar(unknown[1], columns)) else ""
    for said, instead in _SAID.items():
        if second.startswith(said):
            return f"{instead}{second.removeprefix(said)}"
    return ""


def _similar(name: str, names: Sequence[str]) -> str:
    by_lower = {each.lower(): each for each in names}
    found = get_close_matches(name.lower(), by_lower, cutoff=_SIMILAR)
    return " or ".join(by_lower[each] for each in found)


def first_line(error: Exception) -> str:
    """The first line of an error's text: the others show the query, and suggest something."""
    return str(error).partition("\n")[0].replace("Values list ", "table ")


def quoted(name: str) -> str:
    """A name as an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'
