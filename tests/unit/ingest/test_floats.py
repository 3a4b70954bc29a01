"""Zeros of either sign, and all NaNs, are one value: in keys, in rows, and for those who follow."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.collections import StorageController
from holdfast.ingest import ingest_source
from holdfast.ingest.envelope import DELETES, ORDER, UpsertState
from holdfast.persist import PersistClient, Schema
from holdfast.persist.rows.canonical import prepare_updates
from holdfast.persist.rows.schema import DIFF
from unit.collections.stores import Stores
from unit.ingest.pipelines import created, drained, pipeline
from unit.ingest.topic import Topic

SCHEMA = Schema.of({"id": "float64"}, {"x": "float32?"})


@pytest.fixture
def client() -> PersistClient:
    client = Stores().open()
    created(client, schema=SCHEMA)
    return client


def contents(client: PersistClient) -> Counter[str]:
    """The rows as texts, because a NaN does not equal itself, and zeros of both signs do."""
    table = StorageController(client).reader("orders", purpose="check").snapshot().to_table()
    found: Counter[str] = Counter()
    for row in table.to_pylist():
        found[f"{row['id']!r} {row['x']!r}"] += row[DIFF]
    return found


def test_rows_without_an_envelope(client: PersistClient) -> None:
    topic = Topic()
    for id_, x in (("0.0", "-0.0"), ("-0.0", "0.0"), ("NaN", "-NaN"), ("NaN", "NaN")):
        topic.send("0", b'{"id":%s,"x":%s}' % (id_.encode(), x.encode()))
    drained(pipeline(client, topic))
    assert contents(client) == Counter({"0.0 0.0": 2, "nan nan": 2})


def test_upsert_takes_them_for_one_key_and_one_row(client: PersistClient) -> None:
    topic = Topic()

    def send(*rows: str) -> int:
        topic.send("0", *(each.encode() for each in rows))
        return drained(pipeline(client, topic, envelope="Upsert"))

    send('{"id":-0.0,"x":1}', '{"id":NaN,"x":-0.0}')
    assert contents(client) == Counter({"0.0 1.0": 1, "nan 0.0": 1})
    send('{"id":0.0,"x":2}', '{"id":NaN,"x":0.0}')
    assert contents(client) == Counter({"0.0 2.0": 1, "nan 0.0": 1})


def test_a_state_that_was_read_again_makes_the_same_changes() -> None:
    """What a step keeps in memory, and what the next process reads, may differ in the sign of a zero."""

    def records(id_: float, x: float, position: int) -> pa.Table:
        order: list[Any] = [[1], ["0"], [position]]
        rows = pa.table([[id_], pa.array([x], pa.float32())], schema=SCHEMA.arrow)
        for name, values in zip(ORDER, order, strict=True):
            rows = rows.append_column(name, pa.array(values))
        return rows.append_column(DELETES, pa.array([False]))

    def look_up(_: pa.Table) -> pa.Table:
        return pa.Table.from_batches([stored])

    kept, read, large = UpsertState(SCHEMA, 1 << 20), UpsertState(SCHEMA, 1 << 20), UpsertState(SCHEMA, 1)
    updates, kept.rows = kept.changes(records(-0.0, -0.0, 0), look_up)
    stored = prepare_updates(SCHEMA, updates, default_time=0)
    read.load([stored])
    large.load([stored])
    assert (read.rows is None, large.rows is None) == (False, True)
    states = (kept, read, large)
    for id_, x in ((0.0, 0.0), (-0.0, -0.0)):
        assert [each.changes(records(id_, x, 1), look_up)[0].num_rows for each in states] == [0, 0, 0]
    changed = [each.changes(records(0.0, 5, 1), look_up)[0] for each in states]
    prepared = [prepare_updates(SCHEMA, each, default_time=1) for each in changed]
    assert prepared[0].num_rows == 2
    assert prepared[1].equals(prepared[0])
    assert prepared[2].equals(prepared[0])


def test_a_follower_has_the_same_messages(tmp_path: Path) -> None:
    """The checksum is that of the bytes of messages, so the values in them make no difference."""
    url, source = f"file://{tmp_path}/store", tmp_path / "in"
    source.mkdir()
    (source / "a.jsonl").write_text('{"id":-0.0,"x":0.0}\n{"id":0.0,"x":-0.0}\n{"id":NaN,"x":-NaN}\n')
    block = {"files": {"path": str(source)}, "format": {"json": {}}, "envelope": "Upsert"}
    ingest_source(url, "orders", block, once=True, schema=SCHEMA)
    ingest_source(url, "orders", block, once=True, rendition="r2")
    with PersistClient.open(url) as client:
        before = contents(client)
        StorageController(client).renditions.hand_over("orders", "r2")
    ingest_source(url, "orders", block, once=True)
    with PersistClient.open(url) as client:
        assert contents(client) == before == Counter({"0.0 0.0": 1, "nan nan": 1})
