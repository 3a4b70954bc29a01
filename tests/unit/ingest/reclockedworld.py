"""A raw collection, the collections that are fed from it, and what they must have at each time."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from holdfast.collections import CollectionSpec, StorageController
from holdfast.ingest import Ingestion, StepOutcome, ingestion_of, parse
from holdfast.ingest.kept import errors, offsets
from holdfast.persist import PersistClient, Schema
from holdfast.persist.admin.manual import compact_now
from holdfast.persist.rows.schema import DIFF, TIME

RAW: Final = Schema.of(key={"shelf": "int64"}, value={"value": "binary?"})
FED: Final = Schema.of(key={"id": "int64"}, value={"name": "string?"})
FIRST: Final = 1_700_000_000_000

Row = tuple[int, bytes | None]
Contents = Counter[tuple[Any, ...]]


def good(number: int, name: str = "x") -> Row:
    return number, json.dumps({"id": number, "name": name}).encode()


def bad(number: int) -> Row:
    return number, f"bad {number}".encode()


class RawCollection:
    """A collection of raw records, and what was written to it."""

    def __init__(
        self, client: PersistClient, name: str = "raw", shards: int = 2, schema: Schema = RAW, id_: str = ""
    ) -> None:
        self.controller = StorageController(client)
        self.name = name
        self.info = self.controller.create_collection(
            CollectionSpec(id_ or f"{name}-1", name, schema, shards)
        )
        self.written: list[tuple[int, Row, int]] = []
        self.upper = 0

    def write(self, time: int, *rows: Row, diff: int = 1, upto: int = 0) -> None:
        """Add rows at a time. The collection is complete up to `upto`, or just beyond the time."""
        self.write_changes(time, [(row, diff) for row in rows], upto)

    def write_changes(self, time: int, changes: list[tuple[Row, int]], upto: int = 0) -> None:
        writer = self.controller.writer(self.name, purpose="test")
        updates = [
            {"shelf": shelf, "value": value, TIME: time, DIFF: diff} for (shelf, value), diff in changes
        ]
        self.upper = max(upto, time + 1)
        writer.append(updates or None, writer.upper(), self.upper)
        self.written += [(time, row, diff) for row, diff in changes]

    def compact(self) -> None:
        for shard in self.controller.describe(self.name).holding.shards:
            compact_now(self.controller.client, shard, full=True)

    def at(self, time: int) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for when, row, diff in self.written:
            if when <= time:
                found[row] += diff
        return Counter({row: count for row, count in found.items() if count})

    def decoded(self, time: int) -> Contents:
        """What a collection has that is fed from it with JSON."""
        found: Contents = Counter()
        for (_, value), count in self.at(time).items():
            if value is not None and value.startswith(b"{"):
                row = json.loads(value)
                found[row["id"], row.get("name")] += count
        return found

    def undecodable(self, time: int) -> Counter[bytes | None]:
        found: Counter[bytes | None] = Counter()
        for (_, value), count in self.at(time).items():
            if value is None or not value.startswith(b"{"):
                found[value] += count
        return found


def spec_of(form: str = "json", source: Mapping[str, Any] | None = None, **block: Any) -> Any:
    return parse({"collection": {"name": "raw", **(source or {})}, "format": {form: {}}, **block})


@contextmanager
def feeding(
    client: PersistClient,
    form: str = "json",
    source: Mapping[str, Any] | None = None,
    *,
    name: str = "orders",
    schema: Schema | None = FED,
    rendition: str = "",
    **block: Any,
) -> Iterator[Ingestion]:
    """The pipeline of a collection that is fed from the raw one."""
    with (
        StorageController(client) as controller,
        ingestion_of(
            controller, name, spec_of(form, source, **block), schema, rendition=rendition
        ) as ingestion,
    ):
        yield ingestion


def drained(ingestion: Ingestion) -> int:
    """Take steps until nothing is new. Returns how many committed."""
    committed = 0
    while (step := ingestion.step()).outcome not in {StepOutcome.IDLE, StepOutcome.HANDED_OVER}:
        committed += step.outcome is StepOutcome.COMMITTED
    return committed


def contents(client: PersistClient, at: int, name: str = "orders") -> Contents:
    with StorageController(client).reader(name, purpose="check") as reader:
        rows = reader.snapshot(at).to_table().to_pylist()
    found: Contents = Counter()
    for row in rows:
        found[tuple(value for column, value in row.items() if column != DIFF)] += row[DIFF]
    return found


def upper(client: PersistClient, name: str = "orders") -> int:
    return StorageController(client).frontiers(name).upper


def check(client: PersistClient, raw: RawCollection, first: int, upto: int | None = None) -> None:
    """At each time from the first one, the collection has what the raw one has, decoded."""
    controller = StorageController(client)
    assert upper(client) == (raw.upper if upto is None else upto)
    times = {first, upper(client) - 1}
    for time, _, _ in raw.written:
        times |= {each for each in (time - 1, time, time + 1) if first <= each < upper(client)}
    for time in sorted(times):
        assert contents(client, time) == raw.decoded(time), time
        kept = errors(controller, "orders", time)[1].to_pylist()
        assert all(row[DIFF] > 0 for row in kept)
        told: Counter[bytes | None] = Counter()
        for row in kept:
            told[row["value"]] += row[DIFF]
        assert told == raw.undecodable(time), time
        (binding,) = offsets(controller, "orders", time)[1].to_pylist()
        assert (binding["total"], binding["begin"], binding[DIFF]) == (raw.at(time).total(), first, 1)
        # Nothing changed since then.
        assert raw.at(binding["position"] - 1) == raw.at(time)
