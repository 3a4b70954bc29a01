"""The options of `format("holdfast")`: parsed once, checked before anything is opened.

| option | meaning |
|---|---|
| `url` | the persist location, such as `file:///srv/lake` or `@NAME` (required, or the next two) |
| `blob`, `consensus` | its two stores where one URL doesn't tell both: `s3://...` and `postgresql://...` |
| `collection` | the id or the name of a collection (required) |
| `mode` | `snapshot`, the rows (default), or `diff`, the changes between two times |
| `asOf` | the time to read at, or up to; the latest complete one when absent |
| `asOfTimestamp` | the same for times in milliseconds: an ISO date or time, UTC where it has no zone |
| `orEarlier` | `true`: at the latest complete time at or before it; the columns' metadata has it as `asOf` |
| `from` | the changes after this time (`diff`: required; a stream: the contents come first when absent) |
| `columns` | the columns to read: comma separated, or a JSON list |
| `where` | conditions that all must hold, as JSON: `[["id", ">=", 10], ["name", "in", ["a", "b"]]]` |
| `timeZone` | of timestamps without a zone in `where`: `Asia/Tokyo` or `+09:00`; `UTC` by default |
| `partitions` | at most this many Spark partitions (8 by default) |
| `maxRowsPerTrigger` | a stream: take in at most this many changes at a time, but all of one time |
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final
from zoneinfo import ZoneInfo

from holdfast.errors import CLOSED, BadInput
from holdfast.persist.stores.location import resolved

# A Python task costs Spark at least about 30 ms: use few and large ones.
DEFAULT_PARTITIONS = 8
MAX_PARTITIONS = 10_000
_TASK_ROWS: Final = 1_000_000
_TASK_BYTES: Final = 64 << 20

_KNOWN: Final = (
    "url",
    "blob",
    "consensus",
    "collection",
    "mode",
    "asOf",
    "asOfTimestamp",
    "orEarlier",
    "from",
    "columns",
    "where",
    "timeZone",
    "partitions",
    "maxRowsPerTrigger",
)
_OF_STREAMS: Final = "maxRowsPerTrigger"
# These need no data of time zones, which not every image has.
_OFFSET: Final = re.compile(r"(?=.)(?:UTC|GMT|UT|Z|Etc/UTC)?(?:([+-])(\d{1,2})(?::?(\d\d))?)?")
CONDITIONS_FORM: Final = 'such as [["id", ">=", 10], ["name", "in", ["a", "b"]], ["note", "is not", null]]'


class ReadMode(StrEnum):
    """What a DataFrame contains: rows, or changes with `_time` and `_diff`."""

    SNAPSHOT = "snapshot"
    DIFF = "diff"


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What to read, and where: `url`, or `blob` and `consensus`.

    `as_of` None is the latest complete time, `after` None no such time, `columns` None all of them. `zone` is
    of timestamps without one in `where`.
    """

    url: str | None = None
    blob: str | None = None
    consensus: str | None = None
    collection: str
    mode: ReadMode = ReadMode.SNAPSHOT
    as_of: int | None = None
    or_earlier: bool = False
    after: int | None = None
    columns: tuple[str, ...] | None = None
    where: tuple[tuple[str, str, Any], ...] = ()
    zone: tzinfo = UTC
    partitions: int = DEFAULT_PARTITIONS
    rows_per_trigger: int | None = None


def tasks_worth(rows: int, size_bytes: int) -> int:
    """How many tasks it is worth to read so many stored updates in: each takes some ten times its cost."""
    return max(1, math.ceil(rows / _TASK_ROWS), math.ceil(size_bytes / _TASK_BYTES))


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse options from Spark, with keys in any case; a `BadInput` names the wrong option and why."""
    given = checked(options, _KNOWN)
    return ReadOptions(
        url=given.get("url"),
        blob=given.get("blob"),
        consensus=given.get("consensus"),
        collection=given["collection"],
        mode=_mode(given.get("mode", ReadMode.SNAPSHOT)),
        as_of=_as_of(given),
        or_earlier=boolean("orEarlier", given.get("orearlier", "false")),
        after=integer("from", given["from"], 0, CLOSED - 1) if "from" in given else None,
        columns=_names(given["columns"]) if "columns" in given else None,
        where=_where(given["where"]) if "where" in given else (),
        zone=_zone(given["timezone"]) if "timezone" in given else UTC,
        partitions=(
            integer("partitions", given["partitions"], 1, MAX_PARTITIONS)
            if "partitions" in given
            else DEFAULT_PARTITIONS
        ),
        rows_per_trigger=(
            integer(_OF_STREAMS, given[_OF_STREAMS.lower()], 1, CLOSED - 1)
            if _OF_STREAMS.lower() in given
            else None
        ),
    )


def checked(options: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """Return the options with their keys in lower case, after checking the location and the collection.

    Raises `BadInput` if these are missing or can't be used, or if an option is not `known`.
    """
    given = {key.lower(): value for key, value in options.items()}
    # Only CREATE TABLE adds this. Spark 4.3 reads such a table without its OPTIONS.
    if "provider" in given:
        raise BadInput(
            "a table of Spark's catalog can't be a collection: CREATE TEMPORARY VIEW ... USING holdfast"
        )
    stores = ("url",) if "url" in given or not given.keys() & {"blob", "consensus"} else ("blob", "consensus")
    for name in (*stores, "collection"):
        if not given.get(name):
            lost = (
                "" if given else "; a table of Spark's catalog loses its options, and can't be a collection"
            )
            raise BadInput(f"option {name!r} is missing", hint=f'add .option("{name}", ...){lost}')
    if "url" in given and given.keys() & {"blob", "consensus"}:
        raise BadInput("option 'url' gives both stores: use either 'url', or 'blob' and 'consensus'")
    if unknown := sorted(set(given) - {name.lower() for name in known}):
        raise BadInput(f"unknown option {unknown[0]!r}; there are {', '.join(known)}")
    for name in stores:
        if given[name].startswith("memory:"):
            raise BadInput(
                f"{given[name]!r} exists in one process only: use a location that Spark's processes share"
            )
    url, blob, consensus = resolved(
        given.get("url"), blob=given.get("blob"), consensus=given.get("consensus")
    )
    places = {"url": url, "blob": blob, "consensus": consensus}
    return {name: value for name, value in given.items() if name not in places} | {
        name: value for name, value in places.items() if value is not None
    }


def for_batch(options: ReadOptions) -> ReadOptions:
    """Return the options of a batch read. Raises `BadInput` for options that are only for other reads."""
    if options.rows_per_trigger is not None:
        raise BadInput(f"option {_OF_STREAMS!r} is only for streams: use spark.readStream")
    if options.mode is ReadMode.DIFF and options.after is None:
        raise BadInput("option 'from' is missing: give the time after which to read changes")
    if options.mode is ReadMode.SNAPSHOT and options.after is not None:
        raise BadInput("option 'from' is only for changes", hint='add .option("mode", "diff")')
    return options


def for_stream(options: ReadOptions) -> ReadOptions:
    """Return the options of a stream. Raises `BadInput` for options that are only for batch reads."""
    if options.or_earlier:
        raise BadInput("option 'orEarlier' is only for batch reads, not for a stream")
    if options.as_of is not None:
        raise BadInput("options 'asOf' and 'asOfTimestamp' are only for batch reads, not for a stream")
    return options


def check_columns(columns: Sequence[str], collection: str, available: Sequence[str]) -> None:
    """Raise `BadInput` for names that the collection doesn't have."""
    missing = [name for name in columns if name not in available]
    if missing:
        raise no_column(collection, missing[0], available)


def no_column(collection: str, column: str, available: Sequence[str], *, hint: str = "") -> BadInput:
    """Return the error for a column that the collection doesn't have."""
    return BadInput(
        f"collection {collection} has no column {column!r}; it has {', '.join(available)}",
        hint=hint or "check the spelling of the name, and its upper and lower case",
    )


def _mode(text: str) -> ReadMode:
    try:
        return ReadMode(text.lower())
    except ValueError:
        raise BadInput(f"option 'mode' is {text!r}; there are {', '.join(ReadMode)}") from None


def _as_of(given: Mapping[str, str]) -> int | None:
    if "asoftimestamp" not in given:
        if "asof" not in given:
            return None
        hint = "" if given["asof"].isdigit() else "for a date or time, use the option 'asOfTimestamp'"
        return integer("asOf", given["asof"], 0, CLOSED - 1, hint=hint)
    if "asof" in given:
        raise BadInput("options 'asOf' and 'asOfTimestamp' are both given: use one of them")
    from holdfast.tables.moments import milliseconds  # what reads tables takes a second

    return milliseconds(given["asoftimestamp"])


def integer(name: str, text: str, least: int, greatest: int, *, hint: str = "") -> int:
    """Parse an option that is an integer. Raises `BadInput`."""
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= greatest:
        raise BadInput(f"option {name!r} is {text!r}, not an integer from {least} to {greatest}", hint=hint)
    return int(text)


def boolean(name: str, text: str) -> bool:
    """Parse an option that is true or false. Raises `BadInput`."""
    if text.lower() not in ("true", "false"):
        raise BadInput(f"option {name!r} is {text!r}, not true or false")
    return text.lower() == "true"


def _names(text: str) -> tuple[str, ...]:
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError as error:
            raise BadInput(f"option 'columns' is not a JSON list: {error}") from None
    else:
        names = [name.strip() for name in text.split(",")]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise BadInput(f"option 'columns' is {text!r}, not a list of column names")
    if len(set(names)) != len(names):
        raise BadInput(f"option 'columns' names a column twice: {text}")
    return tuple(names)


def _zone(text: str) -> tzinfo:
    """Return the time zone with this name or offset from UTC, in the forms that Spark's sessions use."""
    try:
        if offset := _OFFSET.fullmatch(text):
            sign, hours, minutes = offset.groups(default="")
            east = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
            return timezone(-east if sign == "-" else east)
        return ZoneInfo(text)
    except (ValueError, OSError, KeyError):
        raise BadInput(
            f"option 'timeZone' is {text!r}, not a time zone", hint="such as Asia/Tokyo, or +09:00"
        ) from None


def _where(text: str) -> tuple[tuple[str, str, Any], ...]:
    """Parse the conditions, without checking them against a schema."""
    try:
        # As floats they would not be what was written.
        given = json.loads(text, parse_float=Decimal)
    except ValueError as error:
        raise BadInput(f"option 'where' is not JSON: {error}", hint=CONDITIONS_FORM) from None
    except ArithmeticError:
        raise BadInput(
            "option 'where' has a number that is too great, or too small, to compare with"
        ) from None
    if not isinstance(given, list):
        raise BadInput("option 'where' is not a list of conditions", hint=CONDITIONS_FORM)
    for condition in given:
        if not isinstance(condition, list) or len(condition) != 3 or not isinstance(condition[0], str):
            raise BadInput(
                f"option 'where': {json.dumps(condition, default=str)} is not a condition",
                hint=CONDITIONS_FORM,
            )
    return tuple((column, operator, value) for column, operator, value in given)
