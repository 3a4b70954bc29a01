"""`Table.scan`: what a plain filter of `read` chooses, with little read, and the hold of the table kept."""

import datetime as dt
import gc
import io
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import polars_forks
from holdfast.collections import StorageController
from holdfast.collections.conditions import condition, kept
from holdfast.errors import BadInput, CorruptBlob
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.parts import unsummed, verified
from holdfast.persist.rows import part
from holdfast.persist.rows.blocks import BLOCK_BYTES
from holdfast.persist.rows.canonical import prepare_updates, sort_updates
from holdfast.persist.rows.evolution import upgraded
from holdfast.persist.rows.part import KEYED_GROUP_ROWS, encode_parquet
from holdfast.persist.rows.row_filter import PartBounds
from holdfast.persist.stores import Blob, Location, MemoryBlob, MemoryConsensus
from holdfast.persist.stores.layer import BlobLayer
from holdfast.persist.stores.random_input import RandomInput
from holdfast.tables import Table, filters
from holdfast.tables.filters import filter_of
from testbed.forking import in_child
from unit.collections.stores import Stores

FIELD = pc.field
COLUMNS = {"id": "int64", "f": "float64?", "s": "string?", "n": "int16?"}
LATER = Schema.of({"id": "int64"}, {"f": "float64?", "s": "string?", "n": "int32?", "late": "int64?"})
FLOATS = [None, math.nan, -0.0, 0.0, 1.5, -1.5, math.inf, -math.inf]
# Longer than the statistics that writers of Parquet keep.
TEXTS = [None, "", "a", "b", "ab", "z" * 5000, "z" * 5000 + "a", "\U0001f600"]
ROW = st.fixed_dictionaries(
    {
        "id": st.integers(-2, 6),
        "f": st.sampled_from(FLOATS),
        "s": st.sampled_from(TEXTS),
        "n": st.sampled_from([None, -1, 0, 1, 32767]),
    }
)
LITERALS: dict[str, list[Any]] = {
    "id": [-3, 0, 1, 2.5, 6],
    "f": [-math.inf, -1.5, 0.0, -0.0, 1.5, 7.0, math.nan],
    "s": ["", "a", "b", "z" * 5000, "zz"],
    "n": [-1, 0, 40000, 1.5],
}
COMPARES = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@st.composite
def leaves(draw: st.DrawFn) -> pc.Expression:
    name = draw(st.sampled_from(sorted(COLUMNS)))
    column, value = FIELD(name), draw(st.sampled_from(LITERALS[name]))
    match draw(st.integers(0, 10)):
        case 0:
            return column.is_null()
        case 1:
            return column.is_valid()
        case 2:
            return FIELD("f").is_nan()
        case 3:
            values = [each for each in LITERALS[name] if isinstance(each, str | int) or name == "f"]
            return column.isin(draw(st.lists(st.sampled_from(values), min_size=1)))
        case 4:
            return pc.starts_with(FIELD("s"), draw(st.sampled_from(["", "a", "z"])))
        case 5:
            return FIELD("f").is_null(nan_is_null=True)
        case 6:
            return (FIELD("id") + 1) * 2 > FIELD("n").cast("int64")
        case 7:
            return pc.coalesce(FIELD("n"), 1) == 1
        case 8:
            return column.cast("string") == str(value)
        case _:
            return COMPARES[draw(st.sampled_from(sorted(COMPARES)))](column, value)


EXPRESSIONS = st.recursive(
    leaves(),
    lambda inner: (
        st.builds(lambda a, b: a & b, inner, inner)
        | st.builds(lambda a, b: a | b, inner, inner)
        | st.builds(lambda a: ~a, inner)
    ),
    max_leaves=4,
)
CONDITIONS = st.lists(
    st.sampled_from(sorted(COLUMNS)).flatmap(
        lambda name: (
            st.tuples(st.just(name), st.sampled_from(sorted(COMPARES)), st.sampled_from(LITERALS[name]))
            | st.tuples(st.just(name), st.just("in"), st.lists(st.sampled_from(LITERALS[name]), min_size=1))
            | st.tuples(st.just(name), st.sampled_from(["is", "is not"]), st.none())
        )
    ),
    max_size=3,
)
WRITES = st.lists(st.lists(ROW | st.just(None), min_size=1, max_size=5), min_size=1, max_size=6)


def same_rows(found: pa.Table, expected: pa.Table) -> None:
    assert found.schema.equals(expected.schema)
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.to_pylist()))


def plainly(rows: pa.Table, where: list[tuple[str, str, Any]], schema: pa.Schema) -> pa.Table:
    """The rows that the conditions choose, one row at a time and without statistics."""
    own = Schema.from_arrow(schema, ["id"])
    bound = [condition(*each, own, named="where", form="") for each in where]
    return pa.Table.from_batches([kept(each, bound) for each in rows.to_batches()], rows.schema)


# To make the example smaller would take minutes: each of its steps is a commit.
@settings(max_examples=5, phases=[Phase.generate])
@given(writes=WRITES, evolves_after=st.integers(0, 6), per_part=st.sampled_from([1, 150]), data=st.data())
def test_a_scan_finds_what_a_filter_of_everything_finds(
    writes: list[list[dict[str, Any] | None]], evolves_after: int, per_part: int, data: st.DataObject
) -> None:
    # Each part has few rows, so that statistics differ. The audit reads what they exclude.
    client = Stores().open(inline_max_bytes=0, part_target_bytes=per_part, audit_pushdown=True)
    table = holdfast.table(client, "t", columns=COLUMNS, key="id", shards=2)
    times = [table.append([])]
    for number, rows in enumerate(writes):
        if number == evolves_after:
            StorageController(client).evolve_collection("t", LATER)
            table = holdfast.table(client, "t")
        late = number >= evolves_after
        for row in rows:
            if row is None:
                # A retraction, in another part than its row.
                there = table.counts().slice(0, 1)
                one = pa.array([-1] * there.num_rows, pa.int64())
                times.append(table.append(there.set_column(there.num_columns - 1, "_diff", one)))
            else:
                add = table.upsert if number % 2 else table.append
                times.append(add([{**row, "late": row["n"]} if late else row]))
    with client:
        for as_of in (None, data.draw(st.sampled_from(times))):
            everything = table.read(as_of)
            expression = data.draw(EXPRESSIONS)
            same_rows(
                table.scan(where=expression, as_of=as_of).read_all(),
                everything.filter(expression),
            )
            names = data.draw(st.lists(st.sampled_from(everything.column_names), min_size=1, unique=True))
            same_rows(
                table.scan(names, expression, as_of).read_all(),
                everything.filter(expression).select(names),
            )
            where = data.draw(CONDITIONS)
            same_rows(
                table.scan(where=where, as_of=as_of).read_all(),
                plainly(everything, where, everything.schema),
            )
            same_rows(table.scan(as_of=as_of).read_all(), everything)


SCHEMA = Schema.of({"id": "int64"}, {"f": "float64?", "s": "string?", "n": "int16?"})


@settings(max_examples=60)
@given(
    rows=st.lists(ROW, min_size=1, max_size=8),
    expression=EXPRESSIONS,
    where=CONDITIONS,
    seen=st.booleans(),
    block=st.sampled_from([2, 16]),
)
def test_what_statistics_exclude_has_no_wanted_row(
    rows: list[dict[str, Any]], expression: pc.Expression, where: Any, seen: bool, block: int
) -> None:
    updates = pa.Table.from_batches([sort_updates(SCHEMA, prepare_updates(SCHEMA, rows, default_time=0))])
    metadata = pq.read_metadata(pa.BufferReader(encode_parquet(SCHEMA, 1, updates, row_group_rows=2)))
    bounds = PartBounds(SCHEMA, metadata)
    schema = LATER if seen else SCHEMA
    batch = upgraded(updates, SCHEMA, schema).combine_chunks().to_batches()[0]
    for each in (filter_of(expression, schema), filter_of(where, schema)):
        wanted = each.mask(batch).to_pylist()
        needed = {index // 2 for index, is_wanted in enumerate(wanted) if is_wanted}
        with mock.patch.object(filters, "_BLOCK", block):
            assert needed <= set(each.groups(bounds)) <= set(range(bounds.groups))


@pytest.mark.parametrize("runs", [1, 3])
def test_a_scan_of_parts_with_many_row_groups_finds_what_a_filter_finds(
    runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "KEYED_GROUP_ROWS", 3)
    monkeypatch.setattr(unsummed, "_LEAST_ROWS", 0)
    # The audit also keeps small parts from being read as a whole.
    client = Stores().open(inline_max_bytes=0, audit_pushdown=True)
    chosen = random.Random(1)
    with client, holdfast.table(client, "t", columns=COLUMNS, key="id") as table:
        for run in range(runs):
            rows = [
                {
                    "id": chosen.randrange(30) if run else number,
                    "f": chosen.choice(FLOATS),
                    "s": chosen.choice(TEXTS),
                    # Statistics exclude few row groups, and most of them have no 1.
                    "n": 1 if number // 9 == 2 else chosen.choice([None, -1, 0, 32767]),
                    "_diff": chosen.choice([1, 1, 2]) if number > 20 else 1,
                }
                for number in range(40)
            ]
            table.append(rows)
        everything = table.read()
        if runs > 1:
            gone = table.counts().slice(3, 5)
            table.append(gone.set_column(gone.num_columns - 1, "_diff", pa.array([-1] * 5, pa.int64())))
            everything = table.read()

        @settings(max_examples=15 if runs == 1 else 4)
        @given(
            expression=EXPRESSIONS | st.just(FIELD("n") == 1),
            where=CONDITIONS,
            names=st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, unique=True),
        )
        def check(expression: pc.Expression, where: Any, names: list[str]) -> None:
            chosen_rows = everything.filter(expression)
            same_rows(table.scan(names, expression).read_all(), chosen_rows.select(names))
            assert table.count(expression) == chosen_rows.num_rows
            found = table.scan(names, where).read_all()
            same_rows(found, plainly(everything, where, everything.schema).select(names))

        check()
        assert table.count(pc.scalar(True)) == table.count() == everything.num_rows


class CountingBlob(BlobLayer):
    """Counts the bytes that are read."""

    def __init__(self, inner: Blob) -> None:
        super().__init__(inner)
        self.read_bytes = 0

    def get_start(self, key: str, most: int) -> bytes | None:
        data = super().get_start(key, most)
        self.read_bytes += len(data or b"")
        return data

    def open_input(self, key: str, most: int) -> pa.NativeFile | None:
        return self._counted(super().open_input(key, most))

    def open_spans(self, key: str, size: int, spans: Sequence[tuple[int, int]]) -> pa.NativeFile | None:
        return self._counted(super().open_spans(key, size, spans))

    def _counted(self, file: pa.NativeFile | None) -> pa.NativeFile | None:
        return None if file is None else pa.PythonFile(_Counting(self, file), mode="r")


class _Counting(io.RawIOBase):
    def __init__(self, blob: CountingBlob, file: pa.NativeFile) -> None:
        self._blob = blob
        self._file = file

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._file.read(None if size < 0 else size)
        self._blob.read_bytes += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


ROWS = 400_000


@pytest.fixture(scope="module")
def counting() -> Iterator[tuple[CountingBlob, Table]]:
    """A table with two sorted parts of two row groups, and a third part with other keys."""
    blob = CountingBlob(MemoryBlob())
    client = PersistClient(Location.of(blob, MemoryConsensus()), config=PersistConfig(maintenance="off"))
    with client, holdfast.table(client, "t", columns=COLUMNS, key="id") as table:
        for first in (0, ROWS, 5 * ROWS):
            ids = range(first, first + ROWS // 2)
            table.append(
                {"id": ids, "f": [1.0 * i for i in ids], "s": [f"{i:08}" for i in ids], "n": [7] * len(ids)}
            )
        yield blob, table


@pytest.mark.parametrize(
    "where",
    [
        FIELD("id") == 5,
        (FIELD("id") >= 5) & (FIELD("id") < 9) & (FIELD("n") == 7),
        [("id", "=", 5)],
        [("s", "<", "00000009")],
        FIELD("s") < "00000009",
    ],
    ids=str,
)
def test_a_filtered_scan_reads_only_what_statistics_allow(
    counting: tuple[CountingBlob, Table], where: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob, table = counting
    # No decoded rows are kept.
    monkeypatch.setattr(verified, "_rows", verified._KeptRows())
    monkeypatch.setattr(verified, "_GROUP_BYTES", 0)
    whole = sum(each.size for each in blob.list("") if "/p" in each.key)
    table.scan(where=where).read_all()
    blob.read_bytes = 0
    assert table.scan(where=where).read_all().num_rows in (1, 4, 9)
    # One of five row groups, in whole blocks.
    assert 0 < blob.read_bytes < whole / 4


def test_what_statistics_exclude_is_not_read_at_all(counting: tuple[CountingBlob, Table]) -> None:
    blob, table = counting
    table.scan(where=FIELD("id") == 0).read_all()
    blob.read_bytes = 0
    for where in (FIELD("id") < 0, FIELD("n") == 8, FIELD("s").is_null(), [("f", "is", None)]):
        assert table.scan(where=where).read_all().num_rows == 0
    assert blob.read_bytes == 0


@pytest.fixture(scope="module")
def consolidated() -> Iterator[tuple[CountingBlob, Table, dict[str, int]]]:
    """A table of one part, and how many bytes each of its columns takes."""
    blob = CountingBlob(MemoryBlob())
    client = PersistClient(Location.of(blob, MemoryConsensus()), config=PersistConfig(maintenance="off"))
    with client, holdfast.table(client, "t", columns=COLUMNS, key="id") as table:
        rng = np.random.default_rng(1)
        numbers = rng.random(ROWS // 2)
        rows = {"id": range(ROWS // 2), "f": numbers, "s": numbers.astype(str), "n": numbers * 1000 // 1}
        table.append({**rows, "n": rows["n"].astype("int16")})
        (key,) = (each.key for each in blob.list("") if "/p" in each.key)
        metadata = pq.read_metadata(pa.BufferReader(blob.get(key)))
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        sizes = Counter[str]()
        for column in (group.column(place) for group in groups for place in range(group.num_columns)):
            sizes[column.path_in_schema] += column.total_compressed_size
        table.scan(["id"]).read_all()
        yield blob, table, sizes


@pytest.mark.parametrize("columns", [["id"], ["f"], ["n", "f"], ["s"], []], ids=str)
@pytest.mark.parametrize("reads", ["scan", "read", "scan where", "to_polars", "to_duckdb", "count"])
def test_only_the_columns_of_a_consolidated_table_that_are_needed_are_read(
    consolidated: tuple[CountingBlob, Table, dict[str, int]], columns: list[str], reads: str
) -> None:
    blob, table, sizes = consolidated
    blob.read_bytes = 0
    needed = set(columns)
    match reads:
        case "scan":
            rows = table.scan(columns).read_all().num_rows
        case "read":
            rows = table.read(columns=columns).num_rows if columns else ROWS // 2
        case "scan where":
            needed.add("n")
            rows = table.scan(columns, where=FIELD("n") >= 0).read_all().num_rows
        case "to_polars":
            rows = table.to_polars(columns=columns).height if columns else ROWS // 2
        case "to_duckdb":
            with duckdb.connect() as connection:
                select = ", ".join(f"count({name})" for name in columns or ["*"])
                found = table.to_duckdb(connection=connection).aggregate(select).fetchall()
                rows = found[0][0]
        case _:
            needed = set()
            rows = table.count()
    assert rows == ROWS // 2
    # To count rows, DuckDB asks for the first column. Each column of a row group is read in whole blocks.
    needed = needed or ({"id"} if reads == "to_duckdb" else set())
    groups = -(-ROWS // 2 // KEYED_GROUP_ROWS)
    most = sum(sizes[name] + 2 * groups * BLOCK_BYTES for name in needed)
    assert blob.read_bytes <= most < sum(sizes.values())


@pytest.mark.parametrize("reads", ["scan", "to_duckdb", "count"])
def test_other_columns_are_read_only_of_row_groups_with_chosen_rows(reads: str) -> None:
    blob = CountingBlob(MemoryBlob())
    client = PersistClient(Location.of(blob, MemoryConsensus()), config=PersistConfig(maintenance="off"))
    with client, holdfast.table(client, "t", columns=COLUMNS, key="id") as table:
        rng = np.random.default_rng(1)
        count = 8 * KEYED_GROUP_ROWS
        numbers = rng.random(count)
        # The statistics of each row group allow 7. Only the fifth has it.
        few = rng.integers(0, 2, count).astype("int16") * 10
        few[4 * KEYED_GROUP_ROWS + 100 : 4 * KEYED_GROUP_ROWS + 103] = 7
        table.append({"id": range(count), "f": numbers, "s": numbers.astype(str), "n": few})
        table.count(FIELD("n") == 7)
        blob.read_bytes = 0
        expected = numbers[few == 7].astype(str).tolist()
        match reads:
            case "scan":
                found = table.scan(["s"], FIELD("n") == 7).read_all()["s"].to_pylist()
            case "to_duckdb":
                with duckdb.connect() as connection:
                    rows = table.to_duckdb(connection=connection).filter("n = 7").project("s").fetchall()
                found = [text for (text,) in rows]
            case _:
                found, expected = [table.count(FIELD("n") == 7)], [3]
        assert found == expected
        # One row group of about a megabyte of texts, and a few bits of each row.
        whole = sum(each.size for each in blob.list("") if "/p" in each.key)
        assert 0 < blob.read_bytes < whole / 4


def test_times_are_not_read_if_all_of_them_are_wanted() -> None:
    blob = CountingBlob(MemoryBlob())
    client = PersistClient(Location.of(blob, MemoryConsensus()), config=PersistConfig(maintenance="off"))
    with client:
        shard = client.new_shard_id()
        times = np.random.default_rng(1).integers(0, 1 << 40, ROWS // 4)
        rows = pa.table({"id": range(len(times)), "s": ["x"] * len(times), "_time": times.astype("uint64")})
        writer = client.writer(shard, Schema.of({"id": "int64"}, {"s": "string"}), purpose="t")
        writer.compare_and_append(rows, 0, 1 << 40)
        reader = client.reader(shard, purpose="t")
        middle = int(np.median(times))
        for as_of, few in (((1 << 40) - 1, True), (middle, False)):
            assert reader.snapshot(as_of, columns=["s"]).to_table().num_rows == (times <= as_of).sum()
            blob.read_bytes = 0
            assert reader.snapshot(as_of, columns=["s"]).to_table().num_rows == (times <= as_of).sum()
            assert (blob.read_bytes < len(times)) == few


def test_a_damaged_block_is_found_by_the_scan_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # No decoded rows are kept.
    monkeypatch.setattr(verified, "_GROUP_BYTES", 0)
    blob = MemoryBlob()
    client = PersistClient(Location.of(blob, MemoryConsensus()), config=PersistConfig(maintenance="off"))
    with client, holdfast.table(client, "t", columns=COLUMNS, key="id") as table:
        ids = range(ROWS // 2)
        table.append({"id": ids, "f": [1.0] * len(ids), "s": [f"{i:08}" for i in ids], "n": [7] * len(ids)})
        first, last = FIELD("id") == 0, FIELD("id") == ids[-1]
        assert table.scan(where=first).read_all() == table.scan(where=first).read_all()
        (key,) = (each.key for each in blob.list("") if "/p" in each.key)
        data = bytearray(blob.get(key) or b"")
        data[1000] ^= 1
        blob.put(key, bytes(data))
        # The first row group is damaged since it was verified, the last one is not.
        assert table.scan(where=last).read_all().num_rows == 1
        with pytest.raises(CorruptBlob):
            table.scan(where=first).read_all()
        data[1000] ^= 1
        blob.put(key, bytes(data))
        assert table.scan(where=first).read_all().num_rows == 1


def test_a_part_of_another_history_is_verified_again() -> None:
    client = Stores().open(inline_max_bytes=0)
    with client, holdfast.table(client, "t", columns=COLUMNS, key="id") as table:
        table.append([{"id": 1, "f": None, "s": None, "n": None}])
        table.scan(where=FIELD("id") == 1).read_all()
        machine = client.session.machine(table._opened.info.holding.shards[0])
        (part,) = (part for batch in machine.state.batches for part in batch.parts)
        assert verified._kept[machine].get(part) is verified.known_part(machine, part)
        assert verified._kept[machine].get(replace(part, crc32c=part.crc32c ^ 1)) is None


@pytest.fixture
def orders() -> Iterator[Table]:
    client = Stores().open()
    with client, holdfast.table(client, "orders", columns={"id": "int64", "note": "string?"}) as table:
        table.append([{"id": 1, "note": "a", "_diff": 2}, {"id": 2, "note": None, "_diff": 1}])
        yield table


def busy(table: Table) -> int:
    return table._opened.reading._busy


def test_rows_come_as_often_as_their_count_and_columns_and_limit_hold(orders: Table) -> None:
    found = orders.scan()
    assert isinstance(found, pa.RecordBatchReader)
    assert sorted(found.read_all()["id"].to_pylist()) == [1, 1, 2]
    assert orders.scan(columns=["note"], where=FIELD("id") == 1).read_all() == pa.table({"note": ["a", "a"]})
    for limit in range(4):
        assert orders.scan(limit=limit).read_all().num_rows == limit
    assert pl.DataFrame(pl.from_arrow(orders.scan())).height == 3
    with holdfast.table(orders.client, "empty", columns={"id": "int64"}) as empty:
        assert empty.scan(where=FIELD("id") > 1).read_all().num_rows == 0


@pytest.mark.parametrize(
    "finish",
    [
        lambda scan: scan.read_all(),
        lambda scan: scan.close(),
        lambda scan: scan.__exit__(None, None, None),
        lambda scan: pl.from_arrow(scan),
        lambda scan: scan.__arrow_c_stream__(),
        lambda scan: None,
    ],
)
def test_the_hold_stays_until_the_scan_is_read_closed_or_collected(
    orders: Table, finish: Callable[[Any], object]
) -> None:
    scans = [orders.scan()]
    assert busy(orders) == 1
    finish(scans[0])
    scans.clear()
    gc.collect()
    assert busy(orders) == 0


def test_the_hold_of_a_scan_keeps_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.tables.reading.FOLLOW_S", 0.0)
    client = Stores().open()
    with client, holdfast.table(client, "t", columns={"id": "int64"}, key="id") as table:
        first = table.append([{"id": 1}])
        scan = table.scan()
        last = table.upsert([{"id": 2}])
        StorageController(client).set_retention_hold("t", last)
        table.read()
        assert table.since <= first
        assert scan.read_all()["id"].to_pylist() == [1]
        table.read()
        assert table.since == last


def test_a_handover_and_compaction_during_a_scan_change_nothing() -> None:
    client = Stores().open(inline_max_bytes=0, part_target_bytes=100)
    with client, holdfast.table(client, "t", columns={"id": "int64"}, key="id", shards=2) as table:
        for start in range(0, 200, 20):
            table.append({"id": range(start, start + 20)})
        scans = [table.scan(where=FIELD("id") >= 20), table.scan(where=[("id", ">=", 20)])]
        first = [scan.read_next_batch() for scan in scans]
        controller = StorageController(client)
        info = controller.describe("t")
        for shard in info.holding.shards:
            client.maintain(shard)
        made = controller.renditions.create("t", shards=3)
        controller.renditions.catch_up("t", made.id)
        controller.renditions.hand_over("t", made.id)
        table.upsert({"id": range(20, 40)})
        for batch, scan in zip(first, scans, strict=True):
            rest = pa.Table.from_batches([batch, *scan])
            assert sorted(rest["id"].to_pylist()) == list(range(20, 200))


def test_a_scan_ends_with_its_table_and_cannot_be_read_after_its_end(orders: Table) -> None:
    closed = orders.scan()
    closed.close()
    closed.close()
    with pytest.raises(BadInput, match="the scan is closed"):
        closed.read_next_batch()
    left = orders.scan()
    orders.close()
    with pytest.raises(BadInput, match="closed"):
        left.read_all()
    assert busy(orders) == 0


def test_negative_counts_are_refused_and_only_where_they_are_chosen(orders: Table) -> None:
    orders.append([{"id": 9, "note": None, "_diff": -1}])
    for scan in (orders.scan(), orders.scan(where=FIELD("id") > 5)):
        with pytest.raises(BadInput, match=r"the count of a row is -1 \(id=9, note=None\)"):
            scan.read_all()
    assert orders.scan(where=FIELD("id") < 5).read_all().num_rows == 3
    assert busy(orders) == 0


def test_a_row_that_was_removed_too_often_is_repaired_by_deleting_it(orders: Table) -> None:
    good = orders.upper - 1
    wrong = orders.append([{"id": 9, "note": None, "_diff": -2}])
    with pytest.raises(BadInput) as refused:
        orders.read()
    assert "delete the row" in refused.value.hint
    difference = [{"id": 9, "note": None, "_diff": -2}]
    assert orders.diff(good).to_pylist() == difference
    assert next(iter(orders.tail(good))).drop_columns(["_time"]).to_pylist() == difference
    assert orders.read(where=[("id", "!=", 9)]).num_rows == orders.count(FIELD("id") < 9) == 3
    orders.append([{"id": 4, "note": "another row"}])
    assert orders.delete(where=[("id", "=", 9)]) > wrong
    assert orders.read().num_rows == orders.count() == 4
    assert 9 not in orders.counts()["id"].to_pylist()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (FIELD("idd") == 1, r"column 'idd' is not in the schema \(id, note\)"),
        (FIELD("_diff") == 1, "column '_diff' is not in the schema"),
        (FIELD("id"), "the expression is int64, not true or false"),
        (FIELD("id") == "x", "no kernel matching"),
        ([("idd", "=", 1)], "'idd' is not in the schema"),
        ([("id", "~", 1)], "'~' is not an operator"),
        ([("id", "=", "x")], "'x' is not a value of column 'id'"),
        ([("id", "in", [])], "'in' needs a list"),
        (["id"], "'id' is not a condition"),
        ("id = 1", "'id = 1' is not a condition"),
        (5, "5 is not a condition"),
    ],
)
def test_a_condition_that_does_not_fit_is_one_line(orders: Table, where: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message) as refused:
        orders.scan(where=where)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("table orders: ")
    assert busy(orders) == 0


def test_a_condition_may_fail_for_rows_that_were_removed(client: PersistClient) -> None:
    with holdfast.table(client, "t", columns={"id": "int64", "n": "int32"}, key="id") as table:
        table.append({"id": [1, 2], "n": [4, 0]})
        divided = pc.scalar(8) / FIELD("n") > 1
        with pytest.raises(BadInput, match="where: divide by zero") as refused:
            table.scan(where=divided).read_all()
        assert "if_else" in str(refused.value.hint)
        spared = pc.scalar(8) / pc.if_else(FIELD("n") == 0, pc.scalar(None), FIELD("n")) > 1
        assert table.scan(["id"], spared).read_all().to_pydict() == {"id": [1]}
        table.delete([2])
        assert table.scan(where=divided).read_all().to_pydict() == {"id": [1], "n": [4]}
        assert table.count(divided) == len(table.read(where=divided)) == 1
        # To compare with 0.5, Arrow converts keys to float64, which doesn't hold this one.
        table.append({"id": [2**60 + 1], "n": [1]})
        table.delete([2**60 + 1])
        assert table.count(FIELD("id") > 0.5) == 1
        table.delete(where=divided)
        assert len(table) == 0


@pytest.mark.parametrize("limit", [-1, 1.5, "1", True])
def test_a_limit_is_a_number_of_rows(orders: Table, limit: Any) -> None:
    with pytest.raises(BadInput, match="limit must be a number of rows"):
        orders.scan(limit=limit)


@pytest.mark.parametrize("lost", [False, True])
def test_values_of_all_types_may_be_python_objects(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polars_forks, "_lost", lost)
    row = {
        "day": dt.date(2026, 1, 2),
        "at": dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC),
        "local": dt.datetime(2026, 1, 2, 3),  # noqa: DTZ001
        "raw": b"\x00\xff",
        "price": Decimal("1.50"),
        "on": True,
    }
    types = ("date32", "timestamp_utc", "timestamp", "binary", "decimal128(10,2)", "bool")
    client = Stores().open(inline_max_bytes=0, audit_pushdown=True)
    with client, holdfast.table(client, "t", columns=dict(zip(row, types, strict=True))) as table:
        table.append([row])
        for name, value in row.items():
            assert table.scan(where=[(name, "=", value)]).read_all().num_rows == 1
            assert table.scan(where=[(name, "in", [value, value])]).read_all().num_rows == 1
            assert table.scan(where=[(name, "!=", value)]).read_all().num_rows == 0
            assert table.scan(where=FIELD(name) == pa.scalar(value, table.schema.field(name).type)).read_all()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_scan_in_a_forked_child_leaves_the_hold_to_its_parent(orders: Table) -> None:
    scan = orders.scan()

    def collected() -> None:
        scan.close()

    found = in_child({"close": collected, "read": lambda: orders.scan()})
    assert found == {"close": "", "read": "UsedAfterFork"}
    assert busy(orders) == 1
    assert scan.read_all().num_rows == 3


def test_collecting_a_scan_while_its_thread_opens_a_reader_does_not_block(orders: Table) -> None:
    reading = orders._opened.reading
    scans = [orders.scan()]

    def collect() -> None:
        with reading._lock:
            scans.clear()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert busy(orders) == 0


def test_count_and_len_count_the_rows(orders: Table) -> None:
    before = orders.upper - 1
    orders.append([{"id": 3, "note": "a"}])
    assert orders.count() == len(orders) == 4
    assert orders.count(FIELD("note") == "a", before) == orders.count([("note", "=", "a")], before) == 2
    assert orders.count([]) == 4
    at = orders.upper
    with StorageController(orders.client) as controller:
        many = [{"id": number, "note": None, "_diff": 1 << 62} for number in (7, 8)]
        controller.writer("orders", purpose="test").append(many, at, at + 1)
    assert orders.count() == 4 + (1 << 63)
    with pytest.raises(BadInput, match="too many"):
        len(orders)
    orders.append([{"id": 9, "note": None, "_diff": -1}])
    with pytest.raises(BadInput, match="the count of a row is -"):
        orders.count()
    assert busy(orders) == 0
    with holdfast.table(orders.client, "empty", columns={"id": "int64"}) as empty:
        assert len(empty) == empty.count() == 0
        assert empty


def test_other_libraries_read_a_table_as_a_stream(orders: Table) -> None:
    assert pa.table(orders).sort_by("id") == orders.read().sort_by("id")
    assert pl.DataFrame(orders)["id"].sort().to_list() == [1, 1, 2]
    assert pa.RecordBatchReader.from_stream(orders).schema == orders.schema
    with holdfast.table(orders.client, "copy", columns={"id": "int64", "note": "string?"}) as copy:
        copy.append(orders)
        assert len(copy) == 3
    assert busy(orders) == 0


def test_a_table_as_a_polars_frame_is_sorted_by_its_key() -> None:
    with Stores().open() as client, holdfast.table(client, "t", columns=COLUMNS, key="id") as table:
        first = table.append([{"id": i, "f": math.nan, "s": None, "n": i} for i in (3, 1, 2)])
        table.delete([1])
        assert table.to_polars()["id"].to_list() == [2, 3]
        assert table.to_polars(first, ["n", "id"]).rows() == [(1, 1), (2, 2), (3, 3)]
        assert table.to_polars(where=FIELD("n") > 2, columns=["n"]).rows() == [(3,)]


def test_a_table_shows_what_it_is(orders: Table) -> None:
    assert repr(orders) == "<Table orders: id int64, note string?>"
    with holdfast.table(orders.client, "keyed", columns=COLUMNS, key="id") as keyed:
        assert repr(keyed) == "<Table keyed: key id int64; f float64?, s string?, n int16?>"
    orders.append([{"id": 5, "note": "<b>&"}])
    page = orders._repr_html_()
    assert "<b>orders</b>" in page
    assert "&lt;b&gt;&amp;" in page
    assert "<b>&" not in page
    assert "more rows" not in page
    orders.append([{"id": i, "note": "x" * 500} for i in range(100, 120)])
    page = orders._repr_html_()
    assert page.count("<tr>") == 11
    assert "more rows" in page
    assert "x" * 200 not in page
    assert busy(orders) == 0
    orders.close()
    assert "is closed" in orders._repr_html_()
    assert repr(orders) == "<Table orders: id int64, note string?>"


def test_read_and_pandas_choose_rows_as_a_scan_does(client: PersistClient) -> None:
    table = holdfast.table(client, "chosen", columns={"id": "int64", "note": "string?"}, key="id")
    first = table.append([{"id": n, "note": "a" if n % 2 else None} for n in (3, 1, 2, 2)])
    table.delete([1])
    even: list[tuple[str, str, object]] = [("note", "is", None)]
    assert table.read(where=even)["id"].to_pylist() == [2, 2]
    assert table.read(first, ["note"], pc.field("id") < 3).to_pylist().count({"note": None}) == 2
    assert table.to_pandas(first, ["id"], pc.field("note") == "a")["id"].tolist() == [1, 3]
    with pytest.raises(BadInput, match="nothing"):
        table.read(where=[("nothing", "=", 1)])


def test_threads_that_read_ahead_share_no_position(tmp_path: Path) -> None:
    count = 500_000
    rows = pa.table({"id": np.arange(count), "a": np.arange(count) * 3, "b": np.arange(count) * 7})
    url = tmp_path.as_uri()

    def seek(file: RandomInput, offset: int, whence: int = 0, /) -> int:
        file.at = {0: 0, 1: file.at, 2: file.size}[whence] + offset
        time.sleep(0)
        return file.at

    with holdfast.table(url, "t", columns={"id": "int64", "a": "int64", "b": "int64"}, key="id") as table:
        table.append(rows)
        with mock.patch.object(RandomInput, "seek", seek):
            for _ in range(3):
                found = table.scan(columns=["a", "b"], where=FIELD("b") >= 0).read_all()
                assert found.num_rows == count
                assert pc.all(pc.equal(pc.multiply(found["a"], 7), pc.multiply(found["b"], 3))).as_py()


def test_all_columns_of_many_row_groups() -> None:
    count = 500_000
    rows = pa.table({"id": np.arange(count), "a": np.arange(count) * 3})
    with holdfast.table("memory://many", "t", columns={"id": "int64", "a": "int64"}, key="id") as table:
        table.append(rows)
        assert table.scan().read_all().sort_by("id").cast(rows.schema).equals(rows)
        assert table.scan(columns=["id", "a"]).read_all().sort_by("id").cast(rows.schema).equals(rows)
        table.alter(add={"b": "string?"})
        more = rows.append_column("b", pa.nulls(count, pa.string()))
        assert table.scan().read_all().sort_by("id").cast(more.schema).equals(more)
        # Later rows are not seen at an earlier time, in the same parts or others.
        before = table.latest_time()
        table.append([{"id": -1, "a": -3, "b": "x"}])
        assert table.scan(as_of=before).read_all().sort_by("id").cast(more.schema).equals(more)
        assert table.scan().read_all().num_rows == count + 1
