"""The schemas of a shard: which may follow which. Every reader sees one schema at a time."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput, CodecMismatch, CorruptBlob, ShardFinalized
from holdfast.persist import Listen, PersistClient, Progress, Schema, Updates, WriteMode
from holdfast.persist.rows.canonical import sort_updates
from holdfast.persist.rows.evolution import check_evolution, evolution_fault, lowered, upgraded
from holdfast.persist.rows.schema import Column
from holdfast.persist.rows.values import canonical_floats
from unit.persist.open_stores import OTHER, SHARD, Stores
from unit.persist.rows import strategies

OLD = Schema.of({"k": "int64"}, {"n": "int32", "x": "float32?"})
NEW = Schema.of({"k": "int64"}, {"n": "int64?", "x": "float64?", "note": "string?"})
BLOBS = {"inline_max_bytes": 0}
FORMS = pytest.mark.parametrize("form", [{}, BLOBS], ids=["inline", "blob"])
WIDER = {
    "int8": ["int16", "int32", "int64"],
    "int32": ["int64"],
    "uint8": ["uint16", "int16", "int64"],
    "uint16": ["uint32", "uint64", "int32"],
    "uint32": ["uint64", "int64"],
    "float32": ["float64"],
    "decimal128(10,2)": ["decimal128(38,5)"],
}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"v": "string"}, {"v": "string?"}),
        ({"v": "string"}, {"v": "string", "w": "date32?", "x": "bool?"}),
        ({}, {"w": "binary?"}),
        *(({"v": was}, {"v": wide}) for was, wider in WIDER.items() for wide in wider),
        ({"v": "decimal128(4,2)"}, {"v": "decimal128(6,4)"}),
    ],
)
def test_what_may_follow(old: dict[str, str], new: dict[str, str]) -> None:
    check_evolution(Schema.of({"k": "int64"}, old), Schema.of({"k": "int64"}, new))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ({"v": "string?"}, {"v": "string"}, "may hold nulls"),
        ({"v": "string"}, {"v": "string", "w": "string"}, "must be nullable"),
        ({"v": "string"}, {"w": "string?", "v": "string"}, "must stay where it is"),
        ({"v": "string"}, {"w": "string"}, "must stay where it is"),
        ({"v": "string", "w": "string"}, {"v": "string"}, "'w' can't be dropped"),
        ({"v": "int64"}, {"v": "int32"}, "can't become int32"),
        ({"v": "int32"}, {"v": "uint64"}, "can't become uint64"),
        ({"v": "uint32"}, {"v": "int32"}, "can't become int32"),
        ({"v": "int32"}, {"v": "float64"}, "can't become float64"),
        ({"v": "float64"}, {"v": "float32"}, "can't become float32"),
        ({"v": "decimal128(4,2)"}, {"v": "decimal128(5,4)"}, "can't become decimal128(5,4)"),
        ({"v": "timestamp"}, {"v": "timestamp_utc"}, "can't become timestamp_utc"),
        ({"v": "string"}, {"v": "binary"}, "can't become binary"),
    ],
)
def test_what_may_not_follow(old: dict[str, str], new: dict[str, str], why: str) -> None:
    before, after = Schema.of({"k": "int64"}, old), Schema.of({"k": "int64"}, new)
    with pytest.raises(CodecMismatch) as refused:
        check_evolution(before, after)
    assert why in str(refused.value)
    assert str(before) in str(refused.value)
    assert str(after) in str(refused.value)
    assert "new shard" in refused.value.hint
    assert "own schema" not in refused.value.hint


def test_keys_and_codecs_stay() -> None:
    keyed = Schema.of({"k": "int32"}, {"v": "string"})
    for other in ({"k": "int64"}, {"k": "int32?"}, {"k": "int32", "l": "string?"}, {}):
        assert "key columns" in evolution_fault(keyed, Schema.of(other, {"v": "string"}))
    plain = Schema.of({"key": "binary"}, {"value": "binary"})
    coded = [replace(plain, codec=("a", version)) for version in (1, 2)]
    assert not evolution_fault(coded[0], coded[1])
    assert "never goes back" in evolution_fault(coded[1], coded[0])
    for old, new in ((plain, coded[0]), (coded[0], plain), (coded[0], replace(plain, codec=("b", 1)))):
        assert "codec can't be" in evolution_fault(old, new)
    nullable = Schema.of({"key": "binary"}, {"value": "binary?"}, codec=("a", 2))
    assert "columns of a codec" in evolution_fault(coded[0], nullable)


@st.composite
def followers(draw: st.DrawFn, schema: Schema) -> Schema:
    """A schema that may follow, perhaps the same."""
    value = [
        Column(
            column.name,
            draw(st.sampled_from([column.type, *WIDER.get(column.type, [])])),
            column.nullable or draw(st.booleans()),
        )
        for column in schema.value
    ]
    for _ in range(draw(st.integers(0, 2))):
        type_ = draw(st.sampled_from(sorted(strategies.VALUES)))
        value.append(Column(f"c{len(schema.key) + len(value)}", type_, nullable=True))
    return Schema(schema.key, tuple(value))


def padded(rows: dict[tuple[Any, ...], int], width: int) -> dict[tuple[Any, ...], int]:
    """Contents with nulls in columns to come: what they are under a later schema."""
    return {(*row, *[(0,)] * (width - len(row))): count for row, count in rows.items()}


def summed(pieces: list[dict[tuple[Any, ...], int]]) -> dict[tuple[Any, ...], int]:
    total: dict[tuple[Any, ...], int] = {}
    for piece in pieces:
        for row, count in piece.items():
            total[row] = total.get(row, 0) + count
    return {row: count for row, count in total.items() if count}


@given(data=st.data())
def test_seen_through_a_later_schema_rows_keep_value_and_order(data: st.DataObject) -> None:
    old = data.draw(strategies.schemas())
    new = data.draw(followers(old))
    assert not evolution_fault(old, new)
    rows = sort_updates(old, data.draw(strategies.batches(old)))
    seen = upgraded(rows, old, new)
    seen.validate(full=True)
    assert seen.schema.equals(new.arrow_updates)
    assert padded(strategies.contents(old, rows), len(new.names)) == strategies.contents(new, seen)
    order = [*zip(strategies.comparable(new, seen), seen.column("_time").to_pylist(), strict=True)]
    assert order == sorted(order)
    for column in new.columns:
        array = seen.column(column.name)
        assert not column.type.startswith("float") or canonical_floats(array) is array
    back = lowered(pa.Table.from_batches([seen.drop_columns(["_time"])]), new, old, where="here")
    assert back.schema.equals(old.arrow_diff)
    assert strategies.comparable(old, back) == strategies.comparable(old, rows)


def test_what_needs_a_later_schema_was_not_there_before() -> None:
    for row in ({"n": 1 << 40}, {"n": None}, {"n": 1, "note": "x"}, {"n": 1, "x": 0.1}):
        columns = {"n": [1], "x": [None], "note": [None], **{name: [value] for name, value in row.items()}}
        contents = pa.table({"k": [1], **columns, "_diff": [1]}).cast(NEW.arrow_diff)
        with pytest.raises(CorruptBlob, match="here"):
            lowered(contents, NEW, OLD, where="here")


@settings(max_examples=25)
@given(data=st.data())
def test_every_reader_sees_a_shard_through_its_newest_schema(data: st.DataObject) -> None:
    """Appends, evolutions and upkeep in any order; parts in both forms; nothing that is needed is skipped."""
    schemas = [data.draw(strategies.schemas())]
    stores = Stores()
    common = {"compaction_fanin": 2, "part_target_bytes": 64, "audit_pushdown": True}
    client = stores.open(**common)
    written: list[dict[tuple[Any, ...], int]] = []
    for time in range(data.draw(st.integers(1, 4))):
        if time and data.draw(st.booleans()):
            schemas.append(data.draw(followers(schemas[-1])))
            client.evolve(SHARD, schemas[-1])
        # A writer of any schema that the shard ever had.
        schema = data.draw(st.sampled_from(schemas))
        batch = data.draw(strategies.batches(schema))
        rows = pa.Table.from_batches([batch.drop_columns(["_time"])])
        writing = stores.open(**common, inline_max_bytes=data.draw(st.sampled_from([0, 65536])))
        writing.writer(SHARD, schema, purpose="test").compare_and_append(rows, time, time + 1)
        written.append(strategies.contents(schema, batch))
        if data.draw(st.booleans()):
            client.maintain(SHARD)
    newest, last = schemas[-1], len(written) - 1
    width = len(newest.names)
    client.session.machine(SHARD).refresh()
    reader = client.reader(SHARD, purpose="test")
    assert reader.schema == newest
    parts = [pickle.loads(pickle.dumps(part)) for part in reader.snapshot_parts(last, 3)]
    expected = padded(summed([padded(rows, width) for rows in written]), width)
    streamed = pa.Table.from_batches(list(reader.snapshot(last)), newest.arrow_diff)
    pieces = pa.concat_tables([stores.open().read_snapshot_part(part).to_table() for part in parts])
    for found in (reader.snapshot(last).to_table(), streamed, pieces):
        assert found.schema.equals(newest.arrow_diff)
        assert strategies.contents(newest, found) == expected
        assert found.num_rows == len(expected)
    keys = strategies.comparable(newest, streamed)
    assert keys == sorted(keys)
    events = [*reader.subscribe(0).next(), *reader.listen(0).next(timeout=0)]
    heard = [strategies.contents(newest, event.table) for event in events if isinstance(event, Updates)]
    assert summed(heard) == expected


def row(k: int, n: int, time: int, diff: int = 1, **more: Any) -> dict[str, Any]:
    return {"k": k, "n": n, "x": None, "_time": time, "_diff": diff, **more}


def listed(found: Any) -> list[dict[str, Any]]:
    table = found if isinstance(found, pa.Table) else pa.Table.from_batches(list(found))
    return sorted(table.to_pylist(), key=lambda each: (each["k"], each["n"]))


@FORMS
def test_a_retraction_cancels_what_was_put_in_under_another_schema(form: dict[str, Any]) -> None:
    stores = Stores()
    client = stores.open(compaction_fanin=4, **form)
    old = client.writer(SHARD, OLD, purpose="old")
    old.compare_and_append([row(1, 1, 0), row(2, 2, 0), row(3, 3, 0, x=0.5)], 0, 1)
    client.evolve(SHARD, NEW)
    new = client.writer(SHARD, NEW, purpose="new")
    new.compare_and_append([row(1, 1, 1, -1, note=None), row(3, 3, 1, -1, x=0.5, note=None)], 1, 2)
    new.compare_and_append([row(4, 4, 2, note=None), row(5, 5, 2, note="stays")], 2, 3)
    old.compare_and_append([row(4, 4, 3, -1)], 3, 4)
    reader = stores.open().reader(SHARD, purpose="test")
    expected = [
        {"k": 2, "n": 2, "x": None, "note": None, "_diff": 1},
        {"k": 5, "n": 5, "x": None, "note": "stays", "_diff": 1},
    ]
    assert [part.schema_id for batch in stores.state().batches for part in batch.parts] == [1, 2, 2, 1]
    assert listed(reader.snapshot(3).to_table()) == listed(reader.snapshot(3)) == expected
    client.critical_since(SHARD, purpose="retention").downgrade(3)
    reader.allow_compaction(3)
    client.maintain(SHARD)
    ((part,),) = [tuple(batch.parts) for batch in stores.state().batches]
    assert (part.schema_id, part.rows) == (2, 2)
    assert listed(reader.snapshot(3).to_table()) == listed(reader.snapshot(3)) == expected


def test_a_shard_evolves_only_when_asked(stores: Stores) -> None:
    client = stores.open()
    with pytest.raises(BadInput, match="does not exist"):
        client.evolve(SHARD, NEW)
    writer = client.writer(SHARD, OLD, purpose="test")
    writer.compare_and_append([row(1, 1, 0)], 0, 1)
    with pytest.raises(CodecMismatch) as refused:
        client.writer(SHARD, NEW, purpose="test")
    assert "evolve the shard" in refused.value.hint
    before = stores.stored()
    with pytest.raises(CodecMismatch, match="can't become string"):
        client.evolve(SHARD, Schema.of({"k": "int64"}, {"n": "string", "x": "float32?"}))
    client.evolve(SHARD, OLD)
    assert stores.stored() == before
    client.evolve(SHARD, NEW)
    client.evolve(SHARD, NEW)
    # An earlier one is there already, and stays so.
    client.evolve(SHARD, OLD)
    assert stores.state().schemas == {1: OLD, 2: NEW}
    assert client.inspect(SHARD).schemas == (f"1: {OLD}", f"2: {NEW}")
    client.finalize(SHARD)
    with pytest.raises(ShardFinalized):
        client.evolve(SHARD, NEW)


def test_shards_evolve_together_or_not_at_all(stores: Stores) -> None:
    client = stores.open()
    for shard in (SHARD, OTHER):
        client.writer(shard, OLD, purpose="test").seal(1)
    other = Schema.of({"k": "int64"}, {"n": "int8", "x": "float32?"})
    with pytest.raises(CodecMismatch):
        client.multi_write([client.prepare_evolve(SHARD, NEW), client.prepare_evolve(OTHER, other)])
    assert stores.state().schema == OLD
    client.multi_write([client.prepare_evolve(shard, NEW) for shard in (SHARD, OTHER)])
    assert stores.state(SHARD).schema == stores.state(OTHER).schema == NEW


def test_a_running_snapshot_keeps_its_schema(stores: Stores) -> None:
    """Its parts go in the middle, and what replaced them has the new schema."""
    keyless = Schema.of({}, {"f": "float32", "n": "int32"})
    wide = Schema.of({}, {"f": "float64", "n": "int64?", "note": "string?"})
    client = stores.open(**BLOBS, part_target_bytes=20_000, compaction_fanin=2)
    writer = client.writer(SHARD, keyless, purpose="test")
    values = [number / 4 - 300 for number in range(6000)]
    for time in (0, 1):
        rows = pa.table({"f": pa.array(values[time::2], pa.float32()), "n": pa.array([7] * 3000, pa.int32())})
        writer.compare_and_append(rows, time, time + 1)
    client.maintain(SHARD)
    before = stores.parts()
    reader = stores.open(mode="read").reader(SHARD, purpose="test")
    planned, parts = reader.snapshot(1), reader.snapshot_parts(1, 4)
    assert len(parts) == 4
    stream = iter(reader.snapshot(1))
    first = next(stream)
    listening = reader.listen(1)
    client.evolve(SHARD, wide)
    late = client.writer(SHARD, wide, purpose="late")
    for time in (2, 3):
        late.compare_and_append([{"f": 0.1, "n": 1 << 40, "note": "late"}], time, time + 1)
        client.maintain(SHARD)
    assert not before & stores.parts()
    assert 0 < first.num_rows < len(values)
    streamed = pa.Table.from_batches([first, *stream])
    pieces = [stores.open().read_snapshot_part(part) for part in parts]
    assert all(0 < sum(batch.num_rows for batch in piece) < len(values) for piece in pieces)
    for found in (
        streamed,
        pa.concat_tables([piece.to_table() for piece in pieces]),
        planned.to_table().sort_by("f"),
    ):
        assert found.schema.equals(keyless.arrow_diff)
        assert found.column("f").to_pylist() == values
    assert reader.schema == wide
    assert reader.snapshot(3).to_table().schema.equals(wide.arrow_diff)
    (updates, progress) = listening.next(timeout=0)
    assert isinstance(updates, Updates)
    assert updates.table.column("note").to_pylist() == ["late", "late"]
    assert progress == Progress(4)
    with pytest.raises(BadInput, match="has schema 9, which"):
        client.read_snapshot_part(replace(parts[0], schema_id=9))


@FORMS
def test_what_waits_for_a_seal_lives_through_an_evolution(form: dict[str, Any]) -> None:
    stores = Stores()
    client = stores.open(compaction_fanin=2, **form)
    with client.exclusive("test"):
        mode = WriteMode.WRITE_SEAL
        old = client.writer(SHARD, OLD, purpose="old", mode=mode)
        old.write([row(1, 1, 0), row(2, 2, 5), row(3, 3, 5)])
        old.seal(1)
        client.evolve(SHARD, NEW)
        new = client.writer(SHARD, NEW, purpose="new", mode=mode)
        new.write([row(2, 2, 6, -1, note=None), row(4, 1 << 40, 6, note="new")])
        assert {part.schema_id for batch in stores.state().pending.values() for part in batch.parts} == {1, 2}
        reader = client.reader(SHARD, purpose="test")
        for _ in range(2):
            assert listed(reader.snapshot(0)) == [{"k": 1, "n": 1, "x": None, "note": None, "_diff": 1}]
            client.maintain(SHARD)
        assert {part.schema_id for batch in stores.state().pending.values() for part in batch.parts} == {2}
        new.seal(7)
        expected = [(1, None), (3, None), (4, "new")]
        for _ in range(2):
            for found in (listed(reader.snapshot(6)), listed(reader.snapshot(6).to_table())):
                assert [(each["k"], each["note"]) for each in found] == expected
            client.maintain(SHARD)


@pytest.mark.parametrize("audit", [False, True])
def test_statistics_of_an_older_part_are_seen_through_the_newer_schema(stores: Stores, audit: bool) -> None:
    """Floats are ordered by their bits, which are others in a wider type."""
    narrow, wide = Schema.of({}, {"f": "float32"}), Schema.of({}, {"f": "float64"})
    client = stores.open(**BLOBS, audit_pushdown=audit, maintenance="off")
    writer = client.writer(SHARD, narrow, purpose="test")
    values = [number / 4 - 300 for number in range(2000)]
    for time in range(4):
        rows = pa.table({"f": pa.array(values[500 * time : 500 * (time + 1)], pa.float32())})
        writer.compare_and_append(rows, time, time + 1)
    client.evolve(SHARD, wide)
    parts = client.reader(SHARD, purpose="test").snapshot_parts(3, 4)
    pieces = [client.read_snapshot_part(part).to_table().column("f").to_pylist() for part in parts]
    assert [value for piece in pieces for value in piece] == values
    # They cut where the values are, so that the pieces are about equal.
    assert all(300 < len(piece) < 700 for piece in pieces)


def test_a_process_that_is_behind_reads_pieces_of_a_later_schema(stores: Stores) -> None:
    client, behind = stores.open(), stores.open(mode="read")
    client.writer(SHARD, OLD, purpose="test").compare_and_append([row(1, 1, 0)], 0, 1)
    behind.reader(SHARD, purpose="test")
    client.evolve(SHARD, NEW)
    (part,) = client.reader(SHARD, purpose="test").snapshot_parts(0, 1)
    assert behind.session.machine(SHARD).state.schema == OLD
    assert behind.read_snapshot_part(part).to_table().schema.equals(NEW.arrow_diff)


@pytest.mark.parametrize("follow", ["listen", "subscribe"])
def test_a_listener_sees_the_new_schema_from_one_answer_to_the_next(stores: Stores, follow: str) -> None:
    client = stores.open()
    old = client.writer(SHARD, OLD, purpose="old")
    old.compare_and_append([row(1, 1, 0)], 0, 1)
    begin: Callable[[int], Listen] = getattr(client.reader(SHARD, purpose="test"), follow)
    listen = begin(0)
    if follow == "subscribe":
        listen.next(timeout=0)
    old.compare_and_append([row(2, 2, 1)], 1, 2)
    assert seen(listen) == ["k", "n", "x", "_time", "_diff"]
    client.evolve(SHARD, NEW)
    old.compare_and_append([row(3, 3, 2)], 2, 3)
    client.writer(SHARD, NEW, purpose="new").compare_and_append([row(4, 4, 3, note="n")], 3, 4)
    assert seen(listen) == ["k", "n", "x", "note", "_time", "_diff"]


def seen(listen: Listen) -> list[str]:
    (updates, _) = listen.next(timeout=0)
    assert isinstance(updates, Updates)
    return list(updates.table.column_names)


def test_schemas_outlive_a_rollup_and_a_restart(stores: Stores) -> None:
    client: PersistClient = stores.open(rollup_every=2)
    client.writer(SHARD, OLD, purpose="test").compare_and_append([row(1, 1, 0)], 0, 1)
    client.evolve(SHARD, NEW)
    client.maintain(SHARD)
    assert stores.state().latest_rollup is not None
    assert stores.state().schemas == {1: OLD, 2: NEW}
