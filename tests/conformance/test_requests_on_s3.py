"""How many requests the operations of a table make if all of it is on S3: each costs a round trip."""

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast
from holdfast.persist.stores.s3 import S3Blob
from holdfast.persist.stores.s3_place import S3Place
from holdfast.tables import Table
from testbed.delayproxy import DelayProxy
from testbed.minio import Minio

pytestmark = pytest.mark.s3
COLUMNS = {"id": "int64", "name": "string"}


@pytest.fixture
def proxy(minio: Minio) -> Iterator[DelayProxy]:
    with DelayProxy(minio.port) as found:
        yield found


def rows(number: int) -> pa.Table:
    return pa.table({"id": [number], "name": ["a"]})


Count = Callable[[Callable[[], object]], tuple[int, int]]


@pytest.fixture
def requests(proxy: DelayProxy) -> Count:
    """Counts the GET (also LIST) and PUT requests of an action."""

    def counted(action: Callable[[], object]) -> tuple[int, int]:
        before = proxy.requests()
        action()
        after = proxy.requests()
        return after["GET"] - before["GET"], after["PUT"] - before["PUT"]

    return counted


def test_an_operation_looks_at_the_log_once(proxy: DelayProxy, bucket: str, requests: Count) -> None:
    url = f"s3://{bucket}/place?endpoint={proxy.endpoint}"
    with holdfast.table(url, "rows", columns=COLUMNS, key="id") as table:
        for number in range(3):
            table.append(rows(number))
        table.read()
        # A look is the next object of the log, the floor, and the newest object that is known.
        assert requests(lambda: table.append(rows(3))) == (2, 1)
        assert requests(table.read) == (3, 0)
        assert requests(lambda: table.scan(where=pc.field("id") == 1).read_all()) == (3, 0)
        assert requests(table.latest_time) == (3, 0)
        assert len(table) == 4
    with holdfast.table(url, "rows") as table:
        # The first append also reads the rollups of two shards, and asks for the store's time.
        assert requests(lambda: table.append(rows(4))) == (3 + 2 + 1 + 2, 1)
        assert len(table) == 5


@pytest.mark.parametrize("shards", [1, 8])
def test_an_open_and_a_close_make_few_requests(
    proxy: DelayProxy, bucket: str, requests: Count, shards: int
) -> None:
    url = f"s3://{bucket}/place?endpoint={proxy.endpoint}"
    with holdfast.table(url, "rows", columns=COLUMNS, key="id", shards=shards) as table:
        table.append(pa.table({"id": range(100), "name": ["a"] * 100}))
    opened: list[Table] = []
    gets, puts = requests(lambda: opened.append(holdfast.table(url, "rows")))
    # An open writes nothing. It asks for 16 objects of the log at a time, and checks those that it found.
    assert puts == 0
    assert gets < 2 * 16 + 16 + 8
    (table,) = opened
    # A look, the state of each shard, and one commit of the leases of all shards.
    assert requests(table.latest_time) == (3 + 1 + shards + 2, 1)
    # A look, and the part of each shard, which is in the state if it is small.
    assert requests(table.read) == (3, 0)
    assert requests(lambda: table.append(rows(101))) == (3 + 1 + 2, 1)
    # One commit releases the leases. Another one drops the writer and records the rollups.
    assert requests(table.close) == (2 + 1 + 2, 1 + shards + 1)


def test_a_small_body_is_sent_with_its_headers(minio: Minio, bucket: str) -> None:
    place = S3Place.of(urlsplit(f"s3://{bucket}/headers?endpoint={minio.endpoint}"))
    blob = S3Blob(place)
    seen: list[bool] = []
    client = blob._session.client
    client.meta.events.register(
        "before-send.s3", lambda request, **_: seen.append("Expect" in request.headers)
    )
    blob.put("small", bytes(64 << 10))
    blob.put("large", bytes(65 << 10))
    # A large body waits until the service wants it. A small one would wait for a round trip.
    assert seen == [False, True]
    assert blob.get("small") == bytes(64 << 10)
    blob.close()
