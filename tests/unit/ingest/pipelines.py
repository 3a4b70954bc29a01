"""Pipelines on stores in memory, and what a collection has at each time."""

from collections import Counter
from functools import partial
from typing import Any

from holdfast.collections import CollectionSpec, StorageController
from holdfast.ingest import Ingestion, StepOutcome, parse
from holdfast.ingest.kept import errors, offsets
from holdfast.ingest.opened import format_of
from holdfast.ingest.source import Source
from holdfast.persist import PersistClient, Schema
from holdfast.persist.rows.schema import DIFF

SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string?"})
GENERATOR = {"rows": 1}


def created(client: PersistClient, shards: int = 2, schema: Schema = SCHEMA) -> StorageController:
    controller = StorageController(client)
    controller.create_collection(CollectionSpec("c1", "orders", schema, shards, source_fed=True))
    return controller


def pipeline(client: PersistClient, source: Source, rendition: str = "", **block: Any) -> Ingestion:
    """The pipeline of the collection, or of a rendition. A block that is None is left out."""
    whole = {"generator": GENERATOR, "format": {"json": {}}, "run": {"progressInterval": "0s"}, **block}
    spec = parse({name: each for name, each in whole.items() if each is not None})
    form = partial(format_of, spec)
    return Ingestion(StorageController(client), "orders", spec, source, form, rendition=rendition)


def drained(ingestion: Ingestion) -> int:
    """IngestStep until nothing is new; the number of steps that committed."""
    committed = 0
    while (step := ingestion.step()).outcome is not StepOutcome.IDLE:
        committed += step.outcome is StepOutcome.COMMITTED
    return committed


def rows(client: PersistClient, as_of: int | None = None) -> Counter[tuple[Any, ...]]:
    table = StorageController(client).reader("orders", purpose="check").snapshot(as_of).to_table()
    found: Counter[tuple[Any, ...]] = Counter()
    for row in table.to_pylist():
        diff = row.pop(DIFF)
        assert diff > 0
        found[tuple(row.values())] += diff
    return found


def positions(client: PersistClient, as_of: int | None = None) -> dict[str, int]:
    table = offsets(StorageController(client), "orders", as_of)[1]
    assert set(table[DIFF].to_pylist()) <= {1}
    return dict(zip(table["partition"].to_pylist(), table["position"].to_pylist(), strict=True))


def bad(client: PersistClient, as_of: int | None = None) -> list[tuple[str, int, str]]:
    table = errors(StorageController(client), "orders", as_of)[1]
    return sorted((row["partition"], row["position"], row["kind"]) for row in table.to_pylist())


def row(id_: int, name: str | None = "x") -> dict[str, Any]:
    """A record of `SCHEMA`."""
    return {"id": id_, "name": name}
