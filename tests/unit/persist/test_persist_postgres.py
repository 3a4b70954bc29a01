"""Shards with their log in Postgres and parts in files: all that a client does, and two processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import LocationMismatch, UpperMismatch
from holdfast.persist import PersistClient, PersistConfig
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, contents, rows

pytestmark = pytest.mark.postgres

CONFIG = PersistConfig(gc_grace_s=0.0, debug_validate=True, rollup_every=16, inline_max_bytes=0)
COUNT = 40
WRITER = """
import sys
import pyarrow as pa
from holdfast.errors import UpperMismatch
from holdfast.persist import PersistClient, Schema

folder, url, shard, name, count = sys.argv[1:]
with PersistClient.open(blob=f"file://{folder}", consensus=url) as client:
    writer = client.writer(shard, Schema.of({"k": "int64"}, {"v": "string"}), purpose=name)
    for key in range(int(count)):
        while True:
            upper = writer.cached_upper
            try:
                writer.compare_and_append(pa.table({"k": [key], "v": [name]}), upper, upper + 1)
                break
            except UpperMismatch:
                pass
"""


def _open(folder: Path, url: str) -> PersistClient:
    return PersistClient.open(blob=f"file://{folder}", consensus=url, config=CONFIG)


def test_the_life_of_a_shard(tmp_path: Path, postgres_url: str) -> None:
    with _open(tmp_path, postgres_url) as client:
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        writer.compare_and_append(rows(0), 0, 1)
        reader = client.reader(SHARD, purpose="test")
        for time in range(1, COUNT):
            writer.compare_and_append(rows(time), time, time + 1)
        with pytest.raises(UpperMismatch):
            writer.compare_and_append(rows(-1), 0, 1)
        other = client.writer(OTHER, SCHEMA, purpose="test")
        client.multi_write(
            [writer.prepare_append(rows(-1), COUNT, COUNT + 1), other.prepare_append(rows(-2), 0, COUNT + 1)]
        )
        with pytest.raises(UpperMismatch):
            client.multi_write(
                [
                    writer.prepare_append(rows(-3), COUNT + 1, COUNT + 2),
                    other.prepare_append(rows(-3), 0, COUNT + 2),
                ]
            )
        reader.allow_compaction(COUNT)
        parts = _files(tmp_path)
        for _ in range(3):
            client.maintain(SHARD)
        log = client.session.machine(SHARD).location.consensus.scan(SHARD, 0, 10_000)
        assert log[0].seqno > 1, "the log was truncated"
        assert _files(tmp_path) < parts, "parts were merged, and the old ones deleted"
    with _open(tmp_path, postgres_url) as again:
        found = again.reader(SHARD, purpose="again").snapshot(COUNT).to_table()
        assert contents(found) == {(key, "x"): 1 for key in range(-1, COUNT)}
        found = again.reader(OTHER, purpose="again").snapshot(COUNT).to_table()
        assert contents(found) == {(-2, "x"): 1}
        assert again.recent_upper(SHARD) == again.recent_upper(OTHER) == COUNT + 1


def _files(folder: Path) -> int:
    return sum(1 for path in folder.rglob("*") if path.is_file() and "/w" in str(path))


def test_two_processes_on_one_shard(tmp_path: Path, postgres_url: str) -> None:
    with _open(tmp_path, postgres_url) as client:
        client.writer(SHARD, SCHEMA, purpose="test")
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(tmp_path), postgres_url, SHARD, name, str(COUNT)]
            )
            for name in ("one", "other")
        ]
        assert [process.wait() for process in processes] == [0, 0]
        upper = client.recent_upper(SHARD)
        assert upper == 2 * COUNT
        found = contents(client.reader(SHARD, purpose="test").snapshot(upper - 1).to_table())
    assert found == {(key, name): 1 for key in range(COUNT) for name in ("one", "other")}


def test_a_wrong_pair_of_stores_is_refused(tmp_path: Path, postgres_url: str) -> None:
    _open(tmp_path / "one", postgres_url).close()
    _open(tmp_path / "other", f"{postgres_url}?schema=other").close()

    with pytest.raises(LocationMismatch) as caught:
        _open(tmp_path / "one", f"{postgres_url}?schema=other")

    assert "postgresql://127.0.0.1:" in str(caught.value)
    assert postgres_url not in str(caught.value)
