"""A record of a location that was damaged under a living client is an error of ours, and hides nothing."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import CorruptBlob, LogRegressed
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.stores.location import BLOB_KEY
from unit.persist.open_stores import SCHEMA, SHARD, rows

CONFIG = PersistConfig(
    maintenance="off", rollup_every=4, compaction_fanin=3, gc_grace_s=0.0, inline_max_bytes=0
)
DAMAGES = {
    "missing": None,
    "empty": b"",
    "zeros": bytes(130),
    "a list": b"[]",
    "no number": b'{"format": 1, "location_id": "6d9f3f9e-7a37-4a32-8f53-2f57e9d1a3b1", "recoveries": "x"}',
    "infinite": b'{"format": 1, "location_id": "6d9f3f9e-7a37-4a32-8f53-2f57e9d1a3b1", "recoveries": 1e999}',
    "negative": b'{"format": 1, "location_id": "6d9f3f9e-7a37-4a32-8f53-2f57e9d1a3b1", "recoveries": -1}',
    "nested": b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_record_is_named_and_a_log_that_went_back_is_noticed(
    tmp_path: Path, damage: bytes | None
) -> None:
    with (
        PersistClient.open(tmp_path.as_uri(), config=CONFIG) as client,
        closing(sqlite3.connect(tmp_path / "consensus.sqlite")) as log,
    ):
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        for time in range(4):
            writer.compare_and_append(rows(time), time, time + 1)
        old = log.execute("SELECT * FROM consensus").fetchall()
        for time in range(4, 12):
            writer.compare_and_append(rows(time), time, time + 1)
        (record,) = tmp_path.rglob(BLOB_KEY)
        if damage is None:
            record.unlink()
        else:
            record.write_bytes(damage)
        with pytest.raises(CorruptBlob, match=BLOB_KEY):
            client.maintain(SHARD)
        writer.compare_and_append(rows(12), 12, 13)
        with log:
            log.execute("DELETE FROM consensus")
            log.executemany(f"INSERT INTO consensus VALUES ({', '.join('?' * len(old[0]))})", old)
        with pytest.raises(LogRegressed):
            client.recent_upper(SHARD)
