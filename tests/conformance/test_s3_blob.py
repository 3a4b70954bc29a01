"""What only a blob store on S3 meets: lost responses, refusals, servers that stop, multipart objects."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import (
    BadInput,
    CorruptBlob,
    Determinate,
    Indeterminate,
    LocationMismatch,
    NotWritable,
    StorageError,
    StoreUnreachable,
)
from holdfast.persist import PersistClient, PersistConfig, ReadHandle
from holdfast.persist.stores import Blob, Location, Put, s3_objects
from holdfast.persist.stores.layer import BlobLayer
from holdfast.persist.stores.s3 import PART_BYTES, S3Blob
from holdfast.persist.stores.s3_input import S3Input, open_s3_input
from holdfast.persist.stores.s3_objects import S3Objects
from holdfast.persist.stores.s3_place import S3Place
from holdfast.persist.stores.s3_session import S3Session
from holdfast.persist.stores.url import CONSENSUS_FILE
from testbed.delayproxy import DelayProxy
from testbed.droppingproxy import DroppingProxy
from testbed.floodings3 import PROMISED, FloodingS3
from testbed.minio import Minio
from unit.persist.open_stores import SCHEMA, SHARD, rows

pytestmark = pytest.mark.s3
LARGE = 2 * PART_BYTES + 1
Write = Callable[[S3Blob], object]
WRITES: dict[str, tuple[str, Write]] = {
    "put": ("PUT", lambda blob: blob.put("key", b"new")),
    "put in parts": ("POST .*uploadId=", lambda blob: blob.put("key", bytes(LARGE))),
    "delete": ("DELETE", lambda blob: blob.delete("key")),
}


@pytest.fixture
def place(minio: Minio, bucket: str) -> S3Place:
    return S3Place(bucket=bucket, endpoint=minio.endpoint)


@pytest.fixture
def blob(place: S3Place) -> Iterator[S3Blob]:
    store = S3Blob(place)
    yield store
    store.close()


@pytest.fixture
def proxy(minio: Minio) -> Iterator[DroppingProxy]:
    with DroppingProxy(minio.port) as proxy:
        yield proxy


@pytest.fixture
def own(tmp_path: Path, minio: Minio, monkeypatch: pytest.MonkeyPatch) -> Iterator[Minio]:
    """A server that a test may stop."""
    with Minio.start(tmp_path / "minio") as server:
        for name, value in server.credentials.items():
            monkeypatch.setenv(name, value)
        yield server


HUGE = 1 << 30
BUFFERS = 32 << 20
"""Bytes that may be on the way between two sockets, and more."""


@pytest.mark.usefixtures("bucket")
def test_of_what_is_to_be_small_no_more_is_read_than_tells_that_it_is_not(tmp_path: Path) -> None:
    with FloodingS3(HUGE) as theirs:
        stores = {"blob": f"s3://theirs/x?endpoint={theirs.endpoint}"}
        Location.open((tmp_path / "mine").as_uri()).close()
        with pytest.raises(CorruptBlob, match=r"location\.json in S3 bucket theirs"):
            Location.open(**stores, consensus=f"sqlite://{tmp_path}/mine/{CONSENSUS_FILE}")
        assert 0 < theirs.sent < BUFFERS


@pytest.mark.usefixtures("bucket")
def test_of_an_object_that_is_read_in_parts_no_more_is_taken_than_was_asked_for() -> None:
    with FloodingS3(HUGE) as theirs:
        with open_s3_input(S3Place(bucket="theirs", endpoint=theirs.endpoint), "key") as source:
            assert source is not None
            assert [source.read(60), source.read(60)] == [bytes(60), bytes(PROMISED - 60)]
        assert 0 < theirs.sent < BUFFERS


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize(("status", "listings"), [(200, True), (403, True), (403, False), (500, False)])
def test_no_answer_is_read_without_end(*, status: int, listings: bool) -> None:
    with FloodingS3(HUGE, status=status, listings=listings) as theirs:
        with pytest.raises((StoreUnreachable, Determinate), match="ResponseStreamingError"):
            S3Blob(S3Place(bucket="theirs", endpoint=theirs.endpoint)).get("key")
        assert 0 < theirs.sent < BUFFERS


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("listings", [False, True])
def test_an_answer_that_drips_is_given_up(*, listings: bool) -> None:
    """Each byte comes in time, and all of them would take minutes."""
    began = time.monotonic()
    with FloodingS3(10_000, listings=listings, drips=True) as theirs:
        place = S3Place(bucket="theirs", endpoint=theirs.endpoint)
        with pytest.raises((StoreUnreachable, Determinate), match="no response within the time limit"):
            S3Blob(place, answer_s=1.0).get("key")
        assert 0 < theirs.sent < 1000
    assert time.monotonic() - began < 30


def get(blob: S3Blob) -> None:
    blob.get("key")


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize(
    ("call", "listings"), [(get, True), (get, False), (WRITES["put"][1], False)], ids=["list", "get", "put"]
)
def test_headers_that_drip_are_given_up(call: Write, *, listings: bool) -> None:
    """Each byte comes in time, and all of them would take minutes."""
    began = time.monotonic()
    with FloodingS3(10_000, listings=listings, drips_head=True) as theirs:
        place = S3Place(bucket="theirs", endpoint=theirs.endpoint)
        with pytest.raises(StorageError, match="no response within the time limit"):
            call(S3Blob(place, answer_s=1.0))
        assert 0 < theirs.sent < 1000
    assert time.monotonic() - began < 30


def uploads(minio: Minio, bucket: str, key: str = "key") -> list[object]:
    """The uploads of an object in parts that were begun and neither completed nor given up."""
    found: list[object] = minio.client.list_multipart_uploads(Bucket=bucket, Prefix=key).get("Uploads", [])
    return found


def test_keys_lie_below_the_prefix_and_see_nothing_beside_it(minio: Minio, place: S3Place) -> None:
    stores = [
        S3Blob(S3Place(bucket=place.bucket, prefix=p, endpoint=place.endpoint))
        for p in ("a", "a/b", "ab", "")
    ]
    for number, store in enumerate(stores):
        store.put("k", bytes([number]))

    listed = [[meta.key for meta in store.list("")] for store in stores]

    assert listed == [["b/k", "k"], ["k"], ["k"], ["a/b/k", "a/k", "ab/k", "k"]]
    assert [store.get("k") for store in stores] == [b"\0", b"\1", b"\2", b"\3"]
    assert minio.client.get_object(Bucket=place.bucket, Key="a/b/k")["Body"].read() == b"\1"
    for store in stores:
        store.close()


def test_a_long_listing_comes_in_pages(blob: S3Blob) -> None:
    names = [f"k{number:04}" for number in range(1005)]
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(lambda name: blob.put(name, b""), names)] == [None] * len(names)

    assert [meta.key for meta in blob.list("k")] == names
    assert [meta.key for meta in blob.list("k1")] == names[1000:]


def test_a_key_too_long_with_its_prefix_is_refused(place: S3Place) -> None:
    store = S3Blob(S3Place(bucket=place.bucket, prefix="p" * 100, endpoint=place.endpoint))
    key = "/".join(["y" * 185] * 5)

    with pytest.raises(BadInput, match="with its prefix"):
        store.put(key, b"x")
    assert [*store.list("")] == []
    store.close()


@pytest.mark.parametrize("size", [2 * PART_BYTES, LARGE, 5 * PART_BYTES])
def test_objects_around_the_size_of_parts_come_back(
    minio: Minio, place: S3Place, blob: S3Blob, size: int
) -> None:
    data = os.urandom(1 << 16) * (size >> 16) + bytes(size & 0xFFFF)

    blob.put("key", memoryview(data))

    assert blob.get("key") == data
    tag = minio.client.head_object(Bucket=place.bucket, Key="key")["ETag"]
    assert ("-" in tag) == (size > 2 * PART_BYTES), tag
    assert uploads(minio, place.bucket) == []


def test_the_service_has_a_checksum_of_what_was_put(minio: Minio, place: S3Place, blob: S3Blob) -> None:
    blob.put("small", b"123456789")
    blob.put("large", bytes(LARGE))

    found = [
        minio.client.head_object(Bucket=place.bucket, Key=key, ChecksumMode="ENABLED").get(
            "ChecksumCRC32C", ""
        )
        for key in ("small", "large")
    ]

    assert found[0] == "4waSgw=="  # the check value of CRC-32C
    assert found[1].endswith("-3")


@pytest.mark.parametrize("write", WRITES)
def test_a_write_whose_answer_got_lost_is_indeterminate_and_can_be_done_again(
    minio: Minio, place: S3Place, blob: S3Blob, proxy: DroppingProxy, write: str
) -> None:
    blob.put("key", b"old")
    request, act = WRITES[write]
    through = S3Blob(S3Place(bucket=place.bucket, endpoint=proxy.endpoint))
    proxy.lose(request)

    with pytest.raises(Indeterminate, match="closed without a response"):
        act(through)
    done = blob.get("key")
    act(through)

    assert proxy.dropped == 1
    assert done != b"old"
    assert done == blob.get("key")
    assert uploads(minio, place.bucket) == []
    through.close()


@pytest.mark.parametrize("write", ["put", "delete"])
def test_a_write_without_an_answer_in_time_is_indeterminate(
    place: S3Place, blob: S3Blob, proxy: DroppingProxy, write: str
) -> None:
    blob.put("key", b"old")
    request, act = WRITES[write]
    through = S3Blob(S3Place(bucket=place.bucket, endpoint=proxy.endpoint), answer_s=1.0)
    proxy.lose(request, "silence")

    with pytest.raises(Indeterminate, match="no response within the time limit"):
        act(through)

    assert blob.get("key") != b"old"
    through.close()


def test_a_read_without_an_answer_in_time_is_left_to_the_caller(
    place: S3Place, blob: S3Blob, proxy: DroppingProxy
) -> None:
    """A service that hangs would make each request take several times as long."""
    blob.put("key", b"value")
    through = S3Blob(S3Place(bucket=place.bucket, endpoint=proxy.endpoint), answer_s=1.5)
    proxy.lose("GET", "silence")
    with pytest.raises(Determinate, match="no response within the time limit"):
        through.get("key")
    assert proxy.dropped == 1
    assert through.get("key") == b"value"
    through.close()


def test_a_read_whose_answer_got_lost_is_asked_again(
    place: S3Place, blob: S3Blob, proxy: DroppingProxy
) -> None:
    blob.put("key", b"value")
    through = S3Blob(S3Place(bucket=place.bucket, endpoint=proxy.endpoint))

    proxy.lose("GET")
    assert through.get("key") == b"value"
    proxy.lose("GET")
    assert [meta.key for meta in through.list("")] == ["key"]
    for _ in range(3):
        proxy.lose("GET")
    with pytest.raises(Determinate, match="can't read key in S3 bucket"):
        through.get("key")

    assert proxy.dropped == 5
    through.close()


def test_a_part_whose_answer_got_lost_is_sent_again(
    minio: Minio, place: S3Place, proxy: DroppingProxy
) -> None:
    through = S3Blob(S3Place(bucket=place.bucket, endpoint=proxy.endpoint))
    data = os.urandom(1 << 16) * (5 * PART_BYTES >> 16)
    proxy.lose("PUT")

    through.put("key", data)

    assert proxy.dropped == 1
    assert through.get("key") == data
    through.close()


def test_an_upload_that_fails_did_not_happen_and_leaves_no_parts(
    minio: Minio, place: S3Place, blob: S3Blob, proxy: DroppingProxy
) -> None:
    blob.put("key", b"old")
    through = S3Blob(S3Place(bucket=place.bucket, endpoint=proxy.endpoint))
    for _ in range(7):
        proxy.lose("PUT")  # of three parts, three times each, one does not get through

    with pytest.raises(Determinate, match="can't write key"):
        through.put("key", bytes(LARGE))

    assert blob.get("key") == b"old"
    assert uploads(minio, place.bucket) == []
    through.close()


def test_a_server_that_is_gone_is_told_apart_from_one_that_may_have_done_it(own: Minio) -> None:
    store = S3Blob(S3Place(bucket=own.make_bucket(), endpoint=own.endpoint))
    store.put("key", b"old")
    own.kill()

    for act in (
        lambda: store.put("key", b"new"),
        lambda: store.put("key", bytes(LARGE)),
        lambda: store.delete("key"),
        lambda: store.get("key"),
        lambda: [*store.list("")],
    ):
        with pytest.raises(Determinate, match="there is no connection"):
            act()
    with pytest.raises(StoreUnreachable, match="can't be reached: there is no connection"):
        S3Blob(S3Place(bucket="bucket", endpoint=own.endpoint))
    own.serve()

    assert store.get("key") == b"old"
    store.close()


def test_what_was_acknowledged_outlives_crashes_of_the_server_under_load(own: Minio) -> None:
    store = S3Blob(S3Place(bucket=own.make_bucket(), endpoint=own.endpoint))
    acknowledged: dict[str, bytes] = {}
    failures: list[StorageError] = []
    moved = threading.Condition()
    done = threading.Event()

    def write(writer: int) -> None:
        number = 0
        while not done.is_set():
            key = f"w{writer}/{number:05}"
            data = f"{key} ".encode() * (2_000_000 if number % 10 == 9 else 50)
            try:
                store.put(key, data)
            except (Determinate, Indeterminate) as error:
                with moved:
                    failures.append(error)
                    moved.notify_all()
                continue
            with moved:
                acknowledged[key] = data[:64]
                moved.notify_all()
            number += 1

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, writer) for writer in range(4)]
        try:
            for _ in range(3):
                with moved:
                    written, failed = len(acknowledged), len(failures)
                    assert moved.wait_for(lambda least=written + 25: len(acknowledged) >= least, 60)
                own.kill()
                with moved:
                    assert moved.wait_for(lambda least=failed + 1: len(failures) >= least, 60)
                own.serve()
        finally:
            done.set()
        for writer in writers:
            writer.result(120)

    listed = {meta.key: meta.size for meta in store.list("")}
    for key, begin in acknowledged.items():
        data = store.get(key)
        assert data is not None, key
        assert data[:64] == begin
        assert len(data) == listed[key] == len(f"{key} ") * (2_000_000 if key.endswith("9") else 50)
    store.close()


@pytest.mark.parametrize(
    ("change", "says", "hint"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong-secret"}, "SignatureDoesNotMatch", "AWS_ACCESS_KEY_ID"),
        ({"AWS_ACCESS_KEY_ID": "wrong-secret"}, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "no credentials were found", "AWS_"),
        ({"AWS_SECRET_ACCESS_KEY": None}, "the credentials are incomplete", "AWS_SECRET_ACCESS_KEY"),
        ({"AWS_SESSION_TOKEN": "wrong-secret\n"}, "can't be reached", ""),
    ],
    ids=str,
)
def test_wrong_credentials_are_told_in_one_line_without_them(
    minio: Minio,
    place: S3Place,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str | None],
    says: str,
    hint: str,
) -> None:
    for name, value in change.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)

    with pytest.raises(StoreUnreachable) as caught:
        S3Blob(place)

    told = f"{caught.value} {caught.value.hint} {caught.value.__cause__}"
    assert says in str(caught.value)
    assert hint in caught.value.hint
    assert "\n" not in str(caught.value)
    assert "wrong-secret" not in told
    assert minio.secret_key not in told


@pytest.mark.parametrize("checksum", ["4waSgw==", "AAAAAA==", "AAAAAA==-2", ""])
def test_what_is_read_from_beginning_to_end_is_compared_with_its_checksum(
    place: S3Place, blob: S3Blob, checksum: str
) -> None:
    blob.put("nine", b"123456789")
    with open_s3_input(place, "nine") as found:
        assert found is not None
        assert found.checksum == "4waSgw=="  # the check value of CRC-32C
    with closing(S3Session(place, answer_s=5.0)) as session:
        where = {"Bucket": place.bucket, "Key": session.base + "nine"}
        source = S3Input(session, where, 9, checksum=checksum)
        assert (source.read(2), source.seek(4), source.read(5)) == (b"12", 4, b"56789")
        whole = S3Input(session, where, 9, checksum=checksum)
        assert (whole.read(4), whole.seek(0), whole.read(3), whole.seek(4)) == (b"1234", 0, b"123", 4)
        if checksum == "AAAAAA==":
            with pytest.raises(Determinate, match="don't match their checksum"):
                whole.read(5)
        else:
            assert whole.read(5) == b"56789"


def test_a_missing_bucket_is_told_and_not_made(minio: Minio, bucket: str) -> None:
    name = bucket[:-1] + "-" + "x"

    with pytest.raises(StoreUnreachable, match=f"there is no S3 bucket {name}") as caught:
        S3Blob(S3Place(bucket=name, endpoint=minio.endpoint))

    assert "create the bucket" in caught.value.hint
    assert name not in {found["Name"] for found in minio.client.list_buckets()["Buckets"]}


def test_a_bucket_that_goes_is_an_error_and_no_empty_store(
    minio: Minio, place: S3Place, blob: S3Blob
) -> None:
    minio.client.delete_bucket(Bucket=place.bucket)

    with pytest.raises(Determinate, match="NoSuchBucket"):
        blob.get("key")
    with pytest.raises(Determinate, match="NoSuchBucket"):
        blob.put("key", b"x")
    with pytest.raises(Determinate, match="NoSuchBucket"):
        [*blob.list("")]


def test_a_store_for_reading_writes_nothing(place: S3Place, blob: S3Blob) -> None:
    blob.put("key", b"x")
    reading = S3Blob(place, read_only=True)

    with pytest.raises(NotWritable):
        reading.put("key", b"y")
    with pytest.raises(NotWritable):
        reading.delete("key")

    assert reading.get("key") == b"x"
    reading.close()


def test_a_forked_child_makes_connections_of_its_own(blob: S3Blob) -> None:
    blob.put("parent", b"x")
    blob.put("large", bytes(LARGE))  # starts the threads that upload, which no child has
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        try:
            mine = blob.get("parent")
            blob.put("child", bytes(LARGE))
            os._exit(0 if mine == b"x" else 1)
        except BaseException:  # noqa: BLE001 - a child of a test must end here, whatever came
            os._exit(2)
    assert [blob.get("parent") for _ in range(50)] == [b"x"] * 50
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    assert blob.get("child") == bytes(LARGE)


def test_a_closed_store_holds_no_connection(place: S3Place) -> None:
    store = S3Blob(place)
    store.put("key", bytes(LARGE))
    before = len(list(Path("/proc/self/fd").iterdir()))
    store.close()
    after = len(list(Path("/proc/self/fd").iterdir()))

    assert after < before
    store.close()


def test_a_url_opens_a_location_and_a_wrong_pair_is_refused(place: S3Place, tmp_path: Path) -> None:
    url = f"s3://{place.bucket}/some/place?endpoint={place.endpoint}&region=eu-west-1"
    log = f"sqlite://{tmp_path}/log.sqlite"
    first = Location.open(blob=url, consensus=log)
    again = Location.open(blob=url, consensus=log, read_only=True)
    assert again.location_id == first.location_id
    assert isinstance(again.blob, S3Blob)
    other = Location.open(blob=f"memory://{tmp_path}", consensus=f"sqlite://{tmp_path}/other.sqlite")
    assert other.consensus.compare_and_set([Put("s1", 1, b"x")])
    other.close()

    with pytest.raises(LocationMismatch):
        Location.open(blob=url, consensus=f"sqlite://{tmp_path}/other.sqlite")
    with pytest.raises(LocationMismatch):
        Location.open(blob=url, consensus=f"sqlite://{tmp_path}/new.sqlite")
    with pytest.raises(LocationMismatch):
        Location.open(blob=url.replace("some", "no"), consensus=f"sqlite://{tmp_path}/other.sqlite")
    with pytest.raises(StoreUnreachable, match="never completed"):
        Location.open(blob=url.replace("some", "no"), consensus=log, create=False)

    again.close()
    first.close()


def test_what_others_have_put_under_no_key_is_not_listed(minio: Minio, bucket: str) -> None:
    """The S3 console makes a folder by an empty object whose name ends in a slash."""
    blob = S3Blob(S3Place(bucket=bucket, prefix="place", endpoint=minio.endpoint))
    with closing(blob):
        blob.put("lines/1", b"ours")
        for name in ("place/", "place/lines/", "place/.hidden", f"place/{'x' * 201}"):
            minio.client.put_object(Bucket=bucket, Key=name, Body=b"")
        assert [meta.key for meta in blob.list("")] == ["lines/1"]
        assert [meta.key for meta in blob.list("lines/")] == ["lines/1"]


@pytest.mark.usefixtures("bucket")
def test_of_a_part_no_more_is_read_than_tells_that_it_is_too_large(tmp_path: Path) -> None:
    """The state has the size of the part, and the service answers with 1 GiB."""
    with PersistClient.open(tmp_path.as_uri(), config=PersistConfig(inline_max_bytes=0)) as client:
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        writer.compare_and_append(rows(0), 0, 1)
    with FloodingS3(HUGE) as theirs:
        mine = Location.open(tmp_path.as_uri())
        huge = S3Blob(S3Place(bucket="theirs", endpoint=theirs.endpoint))
        client = PersistClient(replace(mine, blob=huge), mode="read")
        with pytest.raises(CorruptBlob, match=r"expected (\d+) bytes, found more than \1 bytes"):
            client.reader(SHARD, purpose="test")
        assert 0 < theirs.sent < 2 * BUFFERS


@pytest.mark.usefixtures("bucket")
def test_an_object_that_is_too_large_for_a_log_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_objects, "MOST_BYTES", 1 << 20)
    with FloodingS3(HUGE) as theirs:
        objects = S3Objects(S3Place(bucket="theirs", endpoint=theirs.endpoint))
        with pytest.raises(CorruptBlob, match=r"floor in S3 bucket theirs.* less than 1048576 bytes"):
            objects.get("floor")
        assert 0 < theirs.sent < BUFFERS


class SwappedParts(BlobLayer):
    """A store with what another store answers in the place of parts."""

    def __init__(self, inner: Blob, other: Blob) -> None:
        super().__init__(inner)
        self._other = other

    def get_start(self, key: str, most: int) -> bytes | None:
        return self._of(key).get_start(key, most)

    def open_input(self, key: str, most: int) -> pa.NativeFile | None:
        return self._of(key).open_input(key, most)

    def open_spans(self, key: str, size: int, spans: Sequence[tuple[int, int]]) -> pa.NativeFile | None:
        return self._of(key).open_spans(key, size, spans)

    def _of(self, key: str) -> Blob:
        return self._other if "/w" in key else self.inner


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize(
    "read",
    [
        lambda reader: reader.snapshot(0).to_table(),
        lambda reader: list(reader.snapshot(0)),
        lambda reader: reader.snapshot_parts(0, 2),
    ],
)
def test_a_part_that_is_too_large_is_refused_by_each_way_to_read_it(
    tmp_path: Path, read: Callable[[ReadHandle], object]
) -> None:
    with PersistClient.open(tmp_path.as_uri(), config=PersistConfig(inline_max_bytes=0)) as client:
        client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(0), 0, 1)
    with FloodingS3(HUGE) as theirs:
        mine = Location.open(tmp_path.as_uri())
        huge = S3Blob(S3Place(bucket="theirs", endpoint=theirs.endpoint))
        client = PersistClient(replace(mine, blob=SwappedParts(mine.blob, huge)), mode="read")
        with pytest.raises(CorruptBlob, match="/w"):
            read(client.reader(SHARD, purpose="test"))
        assert 0 < theirs.sent < 2 * BUFFERS


def test_only_the_wanted_spans_of_a_large_object_are_fetched(minio: Minio, place: S3Place) -> None:
    data = os.urandom(4 << 20)
    with DelayProxy(minio.port) as proxy, closing(S3Blob(replace(place, endpoint=proxy.endpoint))) as blob:
        blob.put("key", data)
        before, requests = proxy.moved()[1], proxy.requests()["GET"]
        opened = blob.open_spans("key", len(data), [(0, 1 << 16), (1 << 21, (1 << 21) + 10)])
        assert opened is not None
        with opened:
            assert opened.read_at(10, 1 << 21) == data[1 << 21 : (1 << 21) + 10]
        assert (1 << 16) < proxy.moved()[1] - before < 1 << 18
        assert proxy.requests()["GET"] == requests + 2
        # Most of it: one request for all is better.
        opened = blob.open_spans("key", len(data), [(0, 3 << 20)])
        assert opened is not None
        with opened:
            assert opened.read() == data
