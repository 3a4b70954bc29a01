"""Memory is bounded in bytes: rows of 1 MiB and 64 MiB are written, merged, streamed and listened to."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.persist import Progress, Schema, Updates
from holdfast.persist.handles.time_order import LISTEN_BYTES
from holdfast.persist.parts.runs import open_part
from holdfast.persist.rows.merge import merge_runs
from holdfast.persist.rows.schema import DIFF
from holdfast.persist.rows.sizes import pieces_of
from testbed.children import plain_path
from unit.persist.open_stores import SCHEMA, SHARD, Stores, rows

CATALOG = Path(__file__).parents[3] / "catalog"
MIB = 1024 * 1024
WHOLE = "HOLDFAST_TEST_WIDE_ROWS"
"""Set, the rows are as many as once exhausted Arrow's offsets: 3 GiB of them."""

# What a process takes in each phase beyond what it had before, in MiB.
CHILD = """
import gc, json, os, sys
from pathlib import Path
import pyarrow as pa
from holdfast.persist import PersistClient, PersistConfig, Progress, Schema, Updates

folder, width, rows, appends = sys.argv[1], *map(int, sys.argv[2:5])
phases = sys.argv[5:]
schema = Schema.of({"k": "int64"}, {"v": "binary"})
client = PersistClient.open(f"file://{folder}", config=PersistConfig(maintenance="off"))
shard = client.create_or_load("wide", schema)
body = b"x" * (width - 8)

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) // 1024

def phase(name, work):
    gc.collect()
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    print(json.dumps([name, work(), status("VmHWM") - before]), flush=True)

def build():
    writer = client.writer(shard, schema, purpose="test")
    for time in range(appends):
        keys = range(time, rows * appends, appends)
        with writer.batch_builder() as builder:
            builder.add([{"k": k, "v": k.to_bytes(8, "big") + body}] for k in keys)
            builder.compare_and_append(time, time + 1)
    return rows * appends

def stream():
    found = []
    with client.reader(shard, purpose="test") as reader:
        for batch in reader.snapshot(appends - 1):
            found += batch.column("k").to_pylist()
            assert all(len(value) == width for value in batch.column("v"). to_pylist())
    assert found == sorted(found)
    return len(found)

def listen():
    found = []
    with client.reader(shard, purpose="test") as reader:
        follow = reader.listen(0)
        while follow.frontier < appends:
            for event in follow.next(10):
                if isinstance(event, Updates):
                    found += zip(event.table.column("_time").to_pylist(), event.table.column("k").to_pylist())
    assert [time for time, _ in found] == sorted(time for time, _ in found)
    assert len(set(found)) == len(found)
    return len(found)

def subscribe():
    found = 0
    with client.reader(shard, purpose="test") as reader:
        follow = reader.subscribe(appends - 1)
        while True:
            for event in follow.next(10):
                if isinstance(event, Updates):
                    found += event.table.num_rows
                else:
                    assert event == Progress(appends)
                    return found

def compact():
    task = client.compactions.claim(shard, purpose="test", full=True)
    assert client.compactions.install(task, client.compactions.merge(task))
    return client.stored(shard).rows

for name, work in [("build", build), ("stream", stream), ("subscribe", subscribe), ("listen", listen),
                   ("compact", compact), ("stream compacted", stream), ("listen compacted", listen),
                   ("subscribe compacted", subscribe)]:
    if not phases or name in phases:
        phase(name, work)
os._exit(0)
"""


def grown(
    folder: Path, *phases: str, width: int, per_append: int, appends: int
) -> dict[str, tuple[int, int]]:
    environment = {**os.environ, "PYTHONPATH": plain_path(CATALOG), "TMPDIR": str(folder)}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            CHILD,
            str(folder / "location"),
            *map(str, (width, per_append, appends)),
            *phases,
        ],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: (count, mib) for name, count, mib in map(json.loads, done.stdout.splitlines())}


@pytest.mark.long
def test_rows_of_one_mib_take_the_documented_memory(tmp_path: Path) -> None:
    per_append = 400 if os.environ.get(WHOLE) else 40
    found = grown(tmp_path, width=MIB, per_append=per_append, appends=8)

    counts = {name: count for name, (count, _) in found.items()}
    whole = 8 * per_append
    assert counts == {
        **dict.fromkeys((n for n in counts if not n.startswith("listen")), whole),
        **dict.fromkeys(("listen", "listen compacted"), 7 * per_append),
    }
    most = dict.fromkeys(found, 256)
    most |= {name: 384 for name in found if name.startswith("listen")}
    most |= {name: 448 for name in found if name.startswith("subscribe")}
    assert {name: mib for name, (_, mib) in found.items() if mib > most[name]} == {}


@pytest.mark.long
def test_rows_of_64_mib_take_the_documented_memory(tmp_path: Path) -> None:
    found = grown(tmp_path, width=64 * MIB, per_append=2, appends=3)

    assert {count for count, _ in found.values()} == {6, 4}
    # 24 rows: all of them in memory several times would be more.
    assert {name: mib for name, (_, mib) in found.items() if mib > 24 * 64} == {}


MERGES = ("stream", "subscribe", "compact")


@pytest.mark.long
def test_many_batches_of_rows_of_one_mib_take_the_documented_memory(tmp_path: Path) -> None:
    per_append = 100 if os.environ.get(WHOLE) else 10
    found = grown(tmp_path, "build", *MERGES, width=MIB, per_append=per_append, appends=30)

    assert {count for count, _ in found.values()} == {30 * per_append}
    most = {"stream": 320, "subscribe": 320 + 128, "compact": 320 + 3 * 128}
    assert {name: mib for name, mib in most.items() if found[name][1] > mib} == {}


@pytest.mark.long
def test_many_batches_of_rows_of_64_mib_take_the_documented_memory(tmp_path: Path) -> None:
    found = grown(tmp_path, "build", *MERGES, width=64 * MIB, per_append=1, appends=12)

    assert {count for count, _ in found.values()} == {12}
    most = {"stream": 12 * 64, "subscribe": 14 * 64, "compact": 12 * 64 + 3 * 128}
    assert {name: mib for name, mib in most.items() if found[name][1] > mib} == {}


@pytest.mark.parametrize("error", [pa.ArrowInvalid("offset overflow"), MemoryError(), KeyboardInterrupt()])
def test_a_compaction_that_fails_somehow_gives_up_its_claim(
    stores: Stores, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = stores.open(inline_max_bytes=0, compaction_fanin=4)
    with client.writer(SHARD, SCHEMA, purpose="test") as writer:
        for time in range(5):
            writer.compare_and_append(rows(time), time, time + 1)

    def fail(*_: object, **__: object) -> Any:
        raise error

    with monkeypatch.context() as broken:
        # What Arrow raises, in a merge like any other.
        broken.setattr("holdfast.persist.parts.runs.merge_runs", fail)
        with pytest.raises(type(error)):
            client.maintain(SHARD)
    assert stores.state().claims == {}

    client.maintain(SHARD)
    assert len(stores.state().batches) < 5


def test_large_rows_merge_as_small_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    by = ["k", "v"]
    schema = pa.schema([("k", pa.int64()), ("v", pa.string()), (DIFF, pa.int64())])

    def run(given: list[tuple[int | None, str | None, int]], size: int) -> Any:
        columns = [list(column) for column in zip(*given, strict=True)]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
            schema=schema,
        )
        return iter([batch.slice(start, size) for start in range(0, batch.num_rows, size)])

    big = 2**62
    runs = [
        ([(None, "n", 1), (1, "a", 1), (1, "a", big), (2, "b", -1), (5, None, 3)], 1),
        ([(None, "n", -1), (1, "a", big), (1, "b", 2), (2, "b", 1), (3, "c", 1)], 2),
        ([(1, "a", -big), (5, None, 1), (5, "x", 1)], 3),
    ]
    expected = pa.Table.from_batches(merge_runs(by, [run(*each) for each in runs])).to_pylist()
    monkeypatch.setattr("holdfast.persist.rows.merge._LARGE_BYTES", 0)
    monkeypatch.setattr("holdfast.persist.rows.merge._LARGE_ROW_BYTES", 0)
    found = pa.Table.from_batches(merge_runs(by, [run(*each) for each in runs])).to_pylist()
    assert found == expected
    assert [row["k"] for row in found] == [1, 1, 3, 5, 5]


def test_pieces_have_about_so_many_bytes_however_rows_are_spread() -> None:
    values = ["x"] * 5000 + ["y" * 100_000] * 40 + ["x"] * 5000
    table = pa.table({"v": values})
    pieces = list(pieces_of(table, 256 * 1024))
    assert pa.concat_tables(pieces).equals(table)
    assert max(piece.nbytes for piece in pieces) <= 1.25 * 256 * 1024
    assert len(pieces) < 80
    assert [piece.num_rows for piece in pieces_of(table.slice(5000, 3), 10)] == [1, 1, 1]


def test_a_row_group_of_rows_of_one_mib_is_one_row(stores: Stores) -> None:
    client = stores.open(inline_max_bytes=0)
    schema = Schema.of({"k": "int64"}, {"v": "binary"})
    tables = [[{"k": k, "v": bytes([k]) * MIB} for k in range(start, 40, 2)] for start in (0, 1)]
    with client.writer(SHARD, schema, purpose="test") as writer:
        writer.compare_and_append(tables[0], 0, 1)
        with writer.batch_builder() as builder:
            builder.add(tables[1])
            builder.compare_and_append(1, 2)
    machine = client.session.machine(SHARD)
    for part in (part for batch in machine.state.batches for part in batch.parts):
        with open_part(machine, part) as file:
            metadata = pq.read_metadata(file)
            groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
            assert groups == [1] * 20
    # 20 MiB of rows in a run are as many pieces as they would be in usual row groups.
    with client.reader(SHARD, purpose="test") as reader:
        pieces = reader.snapshot_parts(1)
        assert len(pieces) == 2
        found = [
            row["k"] for piece in pieces for rows in reader.snapshot_of(piece) for row in rows.to_pylist()
        ]
        assert found == list(range(40))


def test_small_batches_of_many_columns_are_merged_at_once(stores: Stores) -> None:
    columns = 300
    schema = Schema.of({"k": "int64"}, {f"c{index}": "int64?" for index in range(columns)})
    client = stores.open(inline_max_bytes=0)
    with client.writer(SHARD, schema, purpose="test") as writer:
        for time in range(10):
            keys = range(time, 200, 10)
            writer.compare_and_append(
                pa.table({"k": keys} | {f"c{i}": [k + i for k in keys] for i in range(columns)}),
                time,
                time + 1,
            )
    with client.reader(SHARD, purpose="test") as reader:
        # Each batch costs some time per column.
        (rows,) = list(reader.snapshot(9))
        assert rows.column("k").to_pylist() == list(range(200))
        assert rows.column("c299").to_pylist() == [k + 299 for k in range(200)]
        assert reader.snapshot(9).to_table().sort_by("k").equals(pa.Table.from_batches([rows]))


def test_a_listener_gets_much_at_once_however_small_the_pieces_of_the_sort_are(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 8000
    for name, value in (("LISTEN_BYTES", most), ("_CHUNK_BYTES", 1), ("_SPILL_BYTES", 1)):
        monkeypatch.setattr(f"holdfast.persist.handles.time_order.{name}", value)
    client = stores.open(inline_max_bytes=0)
    with client.writer(SHARD, SCHEMA, purpose="test") as writer:
        for time in range(10):
            writer.compare_and_append(rows(*range(time, 1000, 10)), time, time + 1)
    task = client.compactions.claim(SHARD, purpose="test", full=True)
    assert task is not None
    assert client.compactions.install(task, client.compactions.merge(task))
    found, size, calls = 0, 0, 0
    with client.reader(SHARD, purpose="test") as reader:
        listen = reader.listen(0)
        while listen.frontier < 10:
            calls += 1
            for event in listen.next(5):
                if isinstance(event, Updates):
                    found, size = found + event.table.num_rows, size + event.table.nbytes
    assert found == 900
    assert calls <= 2 * size / most + 2


@pytest.mark.parametrize("compacted", [False, True])
def test_a_listener_far_behind_gets_each_update_once_in_bounded_pieces(
    stores: Stores, compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LISTEN_BYTES", 4000), ("_CHUNK_BYTES", 1000), ("_SPILL_BYTES", 200)):
        monkeypatch.setattr(f"holdfast.persist.handles.time_order.{name}", value)
    schema = Schema.of({"k": "int64"}, {"v": "string"})
    client = stores.open(inline_max_bytes=0)
    expected = []
    with client.writer(SHARD, schema, purpose="test") as writer:
        for time in range(12):
            # One time has more than is given at once.
            count = 300 if time == 7 else 15
            updates = [{"k": 7919 * k % 1000, "v": f"v{time}", "_diff": 1 + k % 2} for k in range(count)]
            expected += [(time, each["k"], each["v"], each["_diff"]) for each in updates]
            writer.compare_and_append(updates, time, time + 1)
    with client.reader(SHARD, purpose="test") as reader:
        if compacted:
            task = client.compactions.claim(SHARD, purpose="test", full=True)
            assert task is not None
            assert client.compactions.install(task, client.compactions.merge(task))
        listen = reader.listen(0)
        found: list[tuple[Any, ...]] = []
        progress, calls = 1, 0
        while progress < 12:
            calls += 1
            for event in listen.next(5):
                match event:
                    case Updates(table):
                        assert table.nbytes < 8000
                        assert table["_time"].to_pylist() == sorted(table["_time"].to_pylist())
                        found += zip(
                            *(table[name].to_pylist() for name in ("_time", "k", "v", DIFF)), strict=True
                        )
                        assert min(time for time, *_ in found[-table.num_rows :]) >= progress
                    case Progress(frontier):
                        assert frontier > progress
                        progress = frontier
        assert calls > 4
        assert listen.next(0) == []
    assert sorted(found) == sorted(each for each in expected if each[0] > 0)
    assert LISTEN_BYTES == 64 * MIB


@pytest.mark.parametrize("begins", ["listens", "subscribes"])
def test_a_listen_that_failed_in_the_middle_says_where_to_go_on(
    begins: str, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LISTEN_BYTES", "_CHUNK_BYTES", "_SPILL_BYTES"):
        monkeypatch.setattr(f"holdfast.persist.handles.time_order.{name}", 100)
    client = stores.open(inline_max_bytes=0)
    with client.writer(SHARD, SCHEMA, purpose="test") as writer:
        writer.compare_and_append(rows(0), 0, 1)
        writer.compare_and_append(rows(*range(200)), 1, 2)
    with client.reader(SHARD, purpose="test") as reader:
        # The rows of the contents have no order of times, so a little comes at once.
        monkeypatch.setattr("holdfast.persist.handles.read.LISTEN_BYTES", 100)
        listen = reader.listen(0) if begins == "listens" else reader.subscribe(1)
        assert [type(event) for event in listen.next(5)] == [Updates]
        assert listen._rest is not None
        # Ends the generator, which holds parts.
        for _ in listen._rest:
            pass

        def broken() -> Any:
            raise OSError("the disk is gone")
            yield

        listen._rest = broken()
        with pytest.raises(OSError, match="the disk is gone"):
            listen.next(5)
        from holdfast.errors import HandleExpired

        with pytest.raises(HandleExpired, match="can't continue") as caught:
            listen.next(5)
        # The contents are lost too, so a listen after them would miss them.
        wanted = {"listens": "listen after 0", "subscribes": "discard all updates, and subscribe again at 1"}
        assert str(caught.value.hint).endswith(wanted[begins])
