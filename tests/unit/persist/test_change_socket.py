"""Change notifications over a socket are prompt, and nothing depends on them."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadInput, StoreUnreachable
from holdfast.persist import Listen, PersistClient, PersistConfig, Updates
from holdfast.persist.notify import MOST_WAITING_BYTES, ChangeServer, parse_address
from holdfast.persist.stores import Consensus, Location
from unit.persist.open_stores import SCHEMA, SHARD, Stores, rows

NEVER_S = 10_000.0


class Silent(Consensus):
    """A store without hints."""

    def __init__(self, inner: Consensus) -> None:
        self.heads = inner.heads  # type: ignore[method-assign]
        self.scan = inner.scan  # type: ignore[method-assign]
        self.compare_and_set = inner.compare_and_set  # type: ignore[method-assign]
        self.truncate = inner.truncate  # type: ignore[method-assign]
        self.list_keys = inner.list_keys  # type: ignore[method-assign]

    description = "silent consensus"
    heads = scan = compare_and_set = truncate = list_keys = None  # type: ignore[assignment]


def reading(stores: Stores, pace_s: float) -> PersistClient:
    location = Location(stores.blob, Silent(stores.consensus), stores.location_id)
    config = PersistConfig(poll_interval_s=pace_s, hinted_poll_interval_s=pace_s)
    return PersistClient(location, mode="read", config=config)


@pytest.fixture(params=["unix", "tcp"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"unix:{tmp_path}/s" if request.param == "unix" else "tcp://127.0.0.1:0"


@pytest.fixture
def writing(stores: Stores) -> Iterator[PersistClient]:
    with stores.open() as client:
        client.writer(SHARD, SCHEMA, purpose="test").seal(1)
        yield client


def keys(listen: Listen, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        for event in listen.next(60):
            if isinstance(event, Updates):
                found += event.table["k"].to_pylist()
    return found


def test_a_follower_sees_each_write_without_ever_polling(
    stores: Stores, writing: PersistClient, address: str
) -> None:
    writer = writing.writer(SHARD, SCHEMA, purpose="test")
    with reading(stores, NEVER_S) as client, ThreadPoolExecutor() as pool:
        client.follow_changes(writing.publish_changes(address))
        listen = client.reader(SHARD, purpose="test").listen(0)
        heard = pool.submit(keys, listen, 30)
        for time in range(1, 31):
            writer.compare_and_append(rows(time), time, time + 1)
        assert heard.result(60) == [*range(1, 31)]


def test_a_follower_lives_through_the_end_and_the_return_of_the_writer(
    stores: Stores, tmp_path: Path
) -> None:
    address = f"unix:{tmp_path}/s"
    with reading(stores, NEVER_S) as client, ThreadPoolExecutor() as pool:
        client.follow_changes(address)
        listen: Listen | None = None
        for start in (1, 11, 21):
            with stores.open() as writing:
                writer = writing.writer(SHARD, SCHEMA, purpose="test")
                writer.seal(1)
                writing.publish_changes(address)
                listen = listen or client.reader(SHARD, purpose="test").listen(0)
                heard = pool.submit(keys, listen, 10)
                for time in range(start, start + 10):
                    writer.compare_and_append(rows(time), time, time + 1)
                assert heard.result(60) == [*range(start, start + 10)]


def test_without_a_writer_that_tells_a_follower_polls(stores: Stores, writing: PersistClient) -> None:
    with reading(stores, 0.01) as client:
        client.follow_changes("tcp://127.0.0.1:1")
        listen = client.reader(SHARD, purpose="test").listen(0)
        writing.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 1, 2)
        assert keys(listen, 1) == [1]


def say(peer: socket.socket, what: bytes) -> None:
    """Send it, and no more; who hears the beginning may hang up at once."""
    with suppress(OSError):
        peer.sendall(what)
        peer.shutdown(socket.SHUT_WR)


def hangs_up(peer: socket.socket) -> bool:
    """Whether the other end closes, in good time; what it had said before doesn't matter."""
    peer.settimeout(60)
    try:
        while peer.recv(1 << 20):
            pass
    except ConnectionError:
        pass
    return True


HOSTILE = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000, b"holdfast 1 another\n", b"\n" * 1000]


@pytest.mark.parametrize("said", HOSTILE, ids=range(len(HOSTILE)))
def test_peers_that_say_anything_are_dropped_and_others_served(
    stores: Stores, writing: PersistClient, said: bytes
) -> None:
    address = writing.publish_changes("tcp://127.0.0.1:0")
    place: Any = parse_address(address)
    with socket.create_connection(place, timeout=30) as peer:
        say(peer, said)
        assert hangs_up(peer)
    with reading(stores, NEVER_S) as client:
        client.follow_changes(address)
        listen = client.reader(SHARD, purpose="test").listen(0)
        writing.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 1, 2)
        assert keys(listen, 1) == [1]


@pytest.mark.parametrize("said", HOSTILE, ids=range(len(HOSTILE)))
def test_a_server_that_is_something_else_is_left_alone(
    stores: Stores, writing: PersistClient, said: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, reading(stores, 0.01) as client:
        client.follow_changes(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        peer, _ = server.accept()
        with peer:
            say(peer, said)
            assert hangs_up(peer)
        listen = client.reader(SHARD, purpose="test").listen(0)
        writing.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(1), 1, 2)
        assert keys(listen, 1) == [1]


def test_a_subscriber_that_does_not_read_is_dropped_and_never_waited_for(
    stores: Stores, tmp_path: Path
) -> None:
    server = ChangeServer(f"unix:{tmp_path}/s", stores.location_id)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(f"{tmp_path}/s")
        peer.settimeout(60)
        assert peer.recv(1) == b"h"
        # More than the system holds for it, and we do: many shards, for news of one replace each other.
        for number in range(40 * MOST_WAITING_BYTES // 50):
            server.changed(f"s{number:036}", number)
        assert hangs_up(peer)
    server.close()


def test_addresses_that_can_not_be(tmp_path: Path, writing: PersistClient) -> None:
    for url in (
        "",
        "unix:relative",
        "tcp://",
        "tcp://host",
        "http://host:1",
        "tcp://host:port",
        "tcp://h:1/x",
    ):
        with pytest.raises(BadInput, match="can't be parsed"):
            writing.publish_changes(url)
        with pytest.raises(BadInput, match="can't be parsed"):
            writing.follow_changes(url)
    (tmp_path / "file").write_text("a file")
    with pytest.raises(StoreUnreachable, match="can't publish changes"):
        writing.publish_changes(f"unix:{tmp_path}/file")
    assert (tmp_path / "file").read_text() == "a file"
    address = writing.publish_changes(f"unix:{tmp_path}/s")
    with pytest.raises(BadInput, match="already"):
        writing.publish_changes("tcp://127.0.0.1:0")
    with pytest.raises(StoreUnreachable):
        ChangeServer(address, writing.location_id)


def test_the_socket_of_a_process_that_died_is_taken_over(tmp_path: Path, stores: Stores) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(f"{tmp_path}/s")
    left.close()
    server = ChangeServer(f"unix:{tmp_path}/s", stores.location_id)
    server.close()
    assert not [*tmp_path.iterdir()]
