"""Databases and roles with a stricter default isolation: many writers lose no append and get no error."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from holdfast.errors import UpperMismatch
from holdfast.persist import PersistClient, PersistConfig
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, contents, rows

pytestmark = pytest.mark.postgres

WRITERS = 8
APPENDS = 6


@pytest.fixture(params=["serializable", "repeatable read"])
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["role", "database"])
def url(request: pytest.FixtureRequest, postgres_url: str, isolation: str) -> Iterator[str]:
    parts = urlsplit(postgres_url)
    database, role = parts.path[1:], f"role_{uuid.uuid4().hex}"
    target = f"ROLE {role}" if request.param == "role" else f'DATABASE "{database}"'
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'".encode())
        admin.execute(f'GRANT CREATE ON DATABASE "{database}" TO {role}'.encode())
        admin.execute(f"ALTER {target} SET default_transaction_isolation = '{isolation}'".encode())
        place = f"{role}:secret@{parts.netloc.rpartition('@')[2]}"
        yield urlunsplit(parts._replace(netloc=place))
        admin.execute(f"DROP OWNED BY {role} CASCADE".encode())
        admin.execute(f"DROP ROLE {role}".encode())


@pytest.mark.long
def test_writers_that_race_under_a_strict_default_isolation(url: str, isolation: str, tmp_path: Path) -> None:
    with psycopg.connect(url) as session:
        assert session.execute("SHOW transaction_isolation").fetchone() == (isolation,)
    # Without retries above the store, each error of the server reaches the writer.
    config = PersistConfig(rollup_every=8, gc_grace_s=5.0, retry_deadline_s=0.0)
    blob = tmp_path.as_uri()
    PersistClient.open(blob=blob, consensus=url).close()

    def write(number: int) -> None:
        with PersistClient.open(blob=blob, consensus=url, config=config) as client:
            one = client.writer(SHARD, SCHEMA, purpose=f"one {number}")
            both = client.writer(OTHER, SCHEMA, purpose=f"both {number}")
            for key in range(number * APPENDS, (number + 1) * APPENDS):
                while True:
                    uppers = client.recent_uppers([SHARD, OTHER])
                    first = uppers[SHARD]
                    try:
                        if key % 3:
                            one.compare_and_append(rows(key), first, first + 1)
                        else:
                            second = uppers[OTHER]
                            appends = [
                                one.prepare_append(rows(key), first, first + 1),
                                both.prepare_append(rows(key), second, second + 1),
                            ]
                            client.multi_write(appends)
                    except UpperMismatch:
                        continue
                    break

    with ThreadPoolExecutor(WRITERS) as threads:
        for done in [threads.submit(write, number) for number in range(WRITERS)]:
            done.result()
    with PersistClient.open(blob=blob, consensus=url) as client:
        for shard, every in ((SHARD, 1), (OTHER, 3)):
            upper = client.recent_upper(shard)
            found = contents(client.reader(shard, purpose="r").snapshot(upper - 1).to_table())
            assert found == {(key, "x"): 1 for key in range(0, WRITERS * APPENDS, every)}
