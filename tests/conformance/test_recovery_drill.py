"""Restore drills on a real Postgres server and a real object store."""

from collections import Counter

import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main
from holdfast.errors import HandleExpired, LocationMismatch
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.persist.admin.verify import verify
from testbed.minio import Minio

pytestmark = [pytest.mark.s3, pytest.mark.postgres]
SHARD = "s00000000-0000-4000-8000-000000000001"
SCHEMA = Schema.of({"k": "int64"})
CONFIG = PersistConfig(
    inline_max_bytes=0, rollup_every=8, compaction_fanin=4, maintenance="inline", debug_validate=True
)


def write(client: PersistClient, first: int, count: int) -> None:
    with client.writer(SHARD, SCHEMA, purpose="test") as writer:
        for time in range(first, first + count):
            writer.compare_and_append(pa.table({"k": [time]}), time, time + 1)


def recover(blob: str, log: str, *options: str) -> Result:
    return CliRunner().invoke(main, ["persist", "recover", blob, "--consensus", log, *options])


def check(client: PersistClient, upper: int) -> None:
    assert client.recent_upper(SHARD) == upper
    found = client.reader(SHARD, purpose="check").snapshot(upper - 1).to_table()
    assert Counter(found["k"].to_pylist()) == Counter(range(upper))
    assert verify(client, SHARD).findings == ()


@pytest.mark.long
def test_a_database_that_is_lost_and_one_that_is_restored(
    minio: Minio, bucket: str, postgres_url: str
) -> None:
    blob = f"s3://{bucket}/shards?endpoint={minio.endpoint}"
    log = postgres_url
    with PersistClient.open(blob=blob, consensus=log, config=CONFIG) as client:
        write(client, 0, 12)
    zombie = PersistClient.open(blob=blob, consensus=log, config=CONFIG)
    with psycopg.connect(postgres_url, autocommit=True) as backup:
        backup.execute("CREATE TABLE copy AS SELECT * FROM holdfast.entries")
        write(zombie, 12, 20)
        backup.execute("DELETE FROM holdfast.entries")
        backup.execute("INSERT INTO holdfast.entries SELECT * FROM copy")

    dry = recover(blob, log)
    assert dry.exit_code == 1, dry.output
    assert "nothing was written" in dry.stderr
    done = recover(blob, log, "--yes")
    assert (done.exit_code, done.stdout) == (1, dry.stdout), done.output
    with pytest.raises(HandleExpired):
        zombie.recent_upper(SHARD)
    zombie.location.close()
    with PersistClient.open(blob=blob, consensus=log, config=CONFIG) as client:
        upper = client.recent_upper(SHARD)
        assert 32 - 8 <= upper <= 32
        check(client, upper)
        write(client, upper, 10)
    again = recover(blob, log, "--yes")
    assert (again.exit_code, again.stdout) == (0, "")
    assert "is healthy" in again.stderr

    empty = f"{postgres_url}?schema=anew"
    lost = recover(blob, empty, "--yes")
    assert lost.exit_code == 1, lost.output
    with PersistClient.open(blob=blob, consensus=empty, config=CONFIG) as client:
        upper = client.recent_upper(SHARD)
        check(client, upper)
        assert upper >= 32 - 8
    with pytest.raises(LocationMismatch):
        PersistClient.open(blob=blob, consensus=log)
