"""How many requests the operations of a table make if all of it is on S3: each costs a round trip."""

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast
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


def test_an_operation_looks_at_the_log_once(proxy: DelayProxy, bucket: str) -> None:
    def requests(action: Callable[[], object]) -> tuple[int, int]:
        before = proxy.requests()
        action()
        after = proxy.requests()
        return after["GET"] - before["GET"], after["PUT"] - before["PUT"]

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
