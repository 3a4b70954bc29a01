"""`Table.history`: who wrote what and when, also after the log was cut, and by builds that record nothing."""

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import main
from holdfast.collections.who import parse_who, who_here, without_process
from holdfast.errors import BadInput
from holdfast.persist import PersistClient
from holdfast.persist.ids import APPENDS_NAME
from holdfast.persist.state import appends
from holdfast.persist.upkeep import garbage
from holdfast.tables import Table
from testbed.faults import Fault, Operation, ProcessDeath, ScriptedPlan
from unit.collections.stores import Stores

COLUMNS = {"id": "int64", "note": "string?"}
CUTS: dict[str, Any] = {"rollup_every": 4, "compaction_fanin": 4}


def opened(client: PersistClient, shards: int = 1) -> Table:
    return holdfast.table(client, "t", columns=COLUMNS, key=["id"], shards=shards)


def writes(table: Table, limit: int = 1000) -> list[tuple[str, int, int, str | None]]:
    rows = [row for row in table.history(limit).to_pylist() if row["time"] is not None]
    return [(row["what"], row["added"], row["removed"], row["who"]) for row in rows]


def upkeep(table: Table) -> None:
    for shard in table._opened.describe().data_shards:
        table.client.maintain(shard)


def kept_blobs(stores: Stores) -> list[str]:
    return [meta.key for meta in stores.blob.list("") if APPENDS_NAME.fullmatch(meta.key)]


def test_each_write_has_its_kind_its_rows_and_its_writer_and_commands_come_between() -> None:
    table = opened(Stores().open(hostname="h1"), shards=3)
    first = table.append([{"id": id_, "note": "a"} for id_ in range(5)])
    table.upsert([{"id": 1, "note": "b"}, {"id": 9, "note": "c"}])
    table.comment({"note": "text"})
    table.delete([2])
    table.update(where=[("id", ">=", 4)], set={"note": "z"})
    table.merge([{"id": 9, "note": "m"}, {"id": 10, "note": "n"}])
    table.append([{"id": 0, "note": "a", "_diff": -1}])
    table.append([{"id": 7, "note": "n", "_diff": 2}, {"id": 7, "note": "n", "_diff": -1}])
    table.append([])
    who = "holdfast.table"
    found = table.history()
    assert writes(table) == [
        ("append", 5, 0, who),
        ("upsert", 2, 1, who),
        ("delete", 0, 1, who),
        ("update", 2, 2, who),
        ("merge", 2, 1, who),
        ("append", 0, 1, who),
        # A compaction would sum equal rows, and must not change what is shown.
        ("append", 1, 0, who),
    ]
    # Within one millisecond, commands come first.
    assert found["what"][0].as_py() == "create collection"
    assert {*found["what"].to_pylist()[:4]} == {"create collection", "append", "upsert", "comment columns"}
    assert first in found["time"].to_pylist()[:4]
    assert set(found["host"].to_pylist()) == {"h1"}
    comment = found["what"].to_pylist().index("comment columns")
    assert json.loads(found["detail"][comment].as_py()) == {"comments": {"note": "text"}}
    assert found["when"].null_count == 0
    assert table.history(2).equals(found.slice(found.num_rows - 2))
    for wrong in (0, True, 10**7, "x"):
        with pytest.raises(BadInput, match="limit must be"):
            table.history(wrong)  # type: ignore[arg-type]


def test_the_user_and_the_process_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada (x), é")
    with holdfast.table(tmp_path, "orders", columns={"id": "int64"}, key="id") as orders:
        orders.append([{"id": 1}])
        orders.alter(add={"note": "string?"})
        assert [
            (row["what"], row["who"], row["user"], row["pid"])
            for row in orders.history().to_pylist()
            if row["what"] in ("append", "evolve collection")
        ] == [(what, "holdfast.table", "ada _x__ é", os.getpid()) for what in ("append", "evolve collection")]
    assert parse_who("spark") == ("spark", None, None)
    assert parse_who(who_here("holdfast collection"))[::2] == ("holdfast collection", os.getpid())
    assert without_process(f"{who_here('table')}: load") == "table: load"


def test_cuts_of_the_log_and_compaction_keep_who_wrote_until_the_since_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stores = Stores()
    table = opened(stores.open(**CUTS), shards=2)
    times = []
    for id_ in range(40):
        times.append(table.upsert([{"id": id_ % 7, "note": str(id_)}]))
        upkeep(table)
    expected = [("upsert", 1, int(id_ >= 7), "holdfast.table") for id_ in range(40)]
    assert writes(table) == expected
    # Each shard rewrites its one small blob, and the log is short.
    assert len(kept_blobs(stores)) == 2
    shard = table._opened.describe().data_shards[0]
    assert len(table.client.location.consensus.scan(shard, 0, 1000)) < 20
    assert writes(holdfast.table(stores.open(mode="read"), "t", mode="read")) == expected
    # A blob that is full is left as it is.
    monkeypatch.setattr(appends, "_SMALL_BYTES", 0)
    for id_ in range(40, 60):
        times.append(table.upsert([{"id": 100 + id_}]))
        upkeep(table)
    assert len(kept_blobs(stores)) > 2
    assert [what for what, *_ in writes(table)] == ["upsert"] * 60
    table._opened.reading.close()
    table._opened.controller.set_retention_hold("t", times[49])
    table.client.close()
    table = opened(stores.open(**CUTS))
    for id_ in range(60, 70):
        table.upsert([{"id": 100 + id_}])
        upkeep(table)
    assert writes(table)[:10] == [("upsert", 1, 0, "holdfast.table")] * 10
    assert len(writes(table)) == 20
    assert all(int(APPENDS_NAME.fullmatch(key)["upper"]) > times[49] for key in kept_blobs(stores))  # type: ignore[index]
    table._opened.controller.drop_collection("t", force=True)
    table._opened.controller.erase_collection(table._opened.info.collection_id)
    assert not kept_blobs(stores)


def test_a_cut_keeps_who_wrote_although_the_writer_has_gone() -> None:
    stores = Stores()
    with stores.open(**CUTS) as client:
        table = opened(client)
        for id_ in range(10):
            table.upsert([{"id": id_}])
    with stores.open(**CUTS) as client:
        table = opened(client)
        upkeep(table)
        shard = table._opened.describe().data_shards[0]
        assert len(client.location.consensus.scan(shard, 0, 1000)) < 10
        assert writes(table) == [("upsert", 1, 0, "holdfast.table")] * 10


def test_a_write_that_nobody_recorded_is_still_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = Stores()
    table = opened(stores.open(**CUTS))
    # An older build cuts the log without keeping who wrote.
    monkeypatch.setattr(garbage, "keep_appends", lambda *_: None)
    for id_ in range(10):
        table.append([{"id": id_}])
        upkeep(table)
    monkeypatch.undo()
    writer = table._opened.controller.writer("t", purpose="nightly: run")
    for id_ in range(10, 20):
        table.append([{"id": id_}])
        upkeep(table)
    upper = writer.upper()
    writer.append([{"id": 1, "_time": upper}, {"id": 2, "_time": upper + 1}], upper, upper + 2)
    found = writes(table)
    assert found[0] == ("write", 1, 0, None)
    assert found[10:20] == [("append", 1, 0, "holdfast.table")] * 10
    # One write may have rows at several times.
    assert found[20:] == [("write", 1, 0, "nightly: run")] * 2


def test_a_cut_that_dies_between_its_steps_shows_no_write_twice() -> None:
    stores = Stores()
    table = opened(stores.open(**CUTS))
    for id_ in range(12):
        table.append([{"id": id_}])
        upkeep(table)

    def replaces(operation: Operation) -> bool:
        return operation.name == "blob.delete" and bool(APPENDS_NAME.fullmatch(operation.keys[0]))

    dying = opened(stores.open(ScriptedPlan({0: Fault.DEATH_BEFORE}, matches=replaces), **CUTS))
    id_ = 11
    with suppress(ProcessDeath):
        while id_ < 29:
            id_ += 1
            dying.append([{"id": id_}])
            upkeep(dying)
    assert id_ < 29
    assert len(kept_blobs(stores)) == 2
    table = opened(stores.open(**CUTS))
    assert writes(table) == [("append", 1, 0, "holdfast.table")] * (id_ + 1)
    for more in range(id_ + 1, 30):
        table.append([{"id": more}])
        upkeep(table)
    assert writes(table) == [("append", 1, 0, "holdfast.table")] * 30


def test_a_handover_moves_no_row_and_its_times_keep_their_writers() -> None:
    table = opened(Stores().open())
    controller = table._opened.controller
    table.append([{"id": 1}])
    controller.renditions.create("t", shards=2)
    table.upsert([{"id": 2}])
    controller.hydrate("t", "r2")
    controller.renditions.hand_over("t", "r2")
    table.delete([1])
    assert [row[:3] for row in writes(table)] == [("append", 1, 0), ("upsert", 1, 0), ("delete", 0, 1)]
    assert "hand over" in table.history()["what"].to_pylist()


GOLDEN = (
    "4846680a010000001afa17fc"
    "0a02030512020a1e1a031ea846220201022a020001320202023a09613a207570736572743a01623a0168"
)


def test_kept_appends_have_the_bytes_of_the_format() -> None:
    stores = Stores()
    client = stores.open()
    table = opened(client)
    (shard,) = table._opened.describe().data_shards
    found = [
        appends._Append(3, 10, 30, 1, "a: upsert", "h"),
        appends._Append(5, 30, 9000, 2, "b", "h"),
    ]
    data = appends._encode(found)
    assert data.hex() == GOLDEN
    stores.blob.put(f"{shard}/h5-9000-{'0' * 8}-0000-4000-8000-{'0' * 12}", data)
    read = client.appends(shard)
    assert read.to_pylist() == [
        {
            "seqno": each.seqno,
            "lower": each.lower,
            "upper": each.upper,
            "wall_ms": each.wall_ms,
            "purpose": each.purpose,
            "hostname": each.hostname,
        }
        for each in found
    ]
    assert client.appends(shard, 30).num_rows == 1
    stores.blob.put(f"{shard}/h6-9000-{'1' * 8}-0000-4000-8000-{'0' * 12}", data[:-1] + b"x")
    assert client.appends(shard).num_rows == 2


def test_the_command_shows_it_in_each_format(tmp_path: Path) -> None:
    url = str(tmp_path / "lake")
    rows = tmp_path / "rows.csv"
    rows.write_text("id,note\n1,a\n2,b\n")
    with holdfast.table(url, "t", columns=COLUMNS, key=["id"]):
        pass

    def run(*args: str) -> Any:
        done = CliRunner().invoke(main, ["collection", *args, "--url", url])
        assert done.exit_code == 0, done.output
        return done

    run("write", "t", str(rows))
    rows.write_text("id,note\n1,a\n2,c\n")
    run("write", "t", str(rows), "--upsert")
    rows.write_text("id\n1\n")
    run("write", "t", str(rows), "--delete")
    shown = run("history", "t")
    assert shown.stderr == "all writes are shown\n"
    # Moments have milliseconds, also if those are 0, and results are no JSON.
    created = shown.stdout.splitlines()[1]
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z  ", created), created
    assert created.endswith("shards 1")
    lines = run("history", "t", "--format", "json").stdout.splitlines()
    (load, upsert, delete) = [json.loads(line) for line in lines][1:]
    assert (load["what"], load["added"], load["who"]) == ("load", 2, "holdfast collection")
    # A row that stays as it is isn't written.
    assert (upsert["what"], upsert["added"], upsert["removed"]) == ("upsert", 1, 1)
    assert (delete["what"], delete["removed"]) == ("delete", 1)
    last = run("history", "t", "--limit", "1", "--format", "csv")
    assert last.stdout.startswith('"when","time"')
    assert last.stderr == "the last entry\n"
    run("history", "t", "--output", str(tmp_path / "h.parquet"))
    assert pq.read_table(tmp_path / "h.parquet").num_rows == 4
