"""Copies, snapshots and decoders of a collection that a topic of Kafka feeds, while processes are killed.

The topic loses what was acknowledged. At the end, rows, errors and bindings are those of a run that nothing
interrupted.
"""

import json
import random
import signal
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import pytest

from holdfast.collections import RenditionInfo, StorageController
from holdfast.errors import AsOfNotYetAvailable, CollectionNotFound
from holdfast.ingest.kept import offsets
from holdfast.persist import PersistClient, Updates
from holdfast.persist.rows.schema import DIFF, TIME
from testbed.kafka import Kafka as Broker
from unit.cli.terminals import DEADLINE_S, HOLDFAST
from unit.ingest.kafkatopic import KafkaTopic
from unit.ingest.snapshots import taken
from unit.ingest.sources.test_kafka_kills import PARTITIONS, Orders

pytestmark = [pytest.mark.kafka, pytest.mark.long]

COLUMNS: Final = {"key": {"id": "int64"}, "columns": {"name": "string?"}}
PARTS: Final = {"partition": "partition", "position": "position", "key": "key", "timestamp": "timestamp"}
RAW: Final = {
    "key": {"partition": "string", "position": "int64"},
    "columns": {"value": "binary?", "key": "binary?", "timestamp": "int64?"},
}
RUN: Final = {
    "run": {"interval": "20ms", "progressInterval": "200ms"},
    "batch": {"maxRows": 200},
    "onError": {"collect": {"limit": 100_000}},
}
KEYS: Final = 20


def encode(row: dict[str, Any]) -> object:
    """Every seventh message is bad."""
    return f"bad {row['name']}".encode() if int(row["name"]) % 7 == 6 else row


class Commands:
    """Commands of one folder, which has the specs and a location. All are killed at the end."""

    def __init__(self, folder: Path, place: str = "location") -> None:
        self.folder = folder
        self.name = place
        self.url = f"file://{folder}/{place}"
        self.errors = folder / f"{place}.stderr"
        self.seed = random.randrange(2**32)
        self.draw = random.Random(self.seed)
        self._running: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._running:
            each.kill()
            each.wait()

    def write(self, spec: str, collection: str, source: dict[str, Any], columns: dict[str, Any]) -> None:
        whole = {"collection": collection, **columns, "source": {**RUN, **source}}
        (self.folder / f"{spec}.yaml").write_text(json.dumps(whole))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [HOLDFAST, *arguments, "--url", self.url]
        with self.errors.open("a") as errors:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, text=True)
        self._running.append(process)
        return process

    def feed(self, spec: str, *options: str) -> subprocess.Popen[str]:
        return self.start("ingest", str(self.folder / f"{spec}.yaml"), *options)

    def ended(self, process: subprocess.Popen[str]) -> None:
        """Wait for the end of a command that succeeds."""
        process.wait(DEADLINE_S)
        self.check_ended(process)

    def check_ended(self, process: subprocess.Popen[str]) -> None:
        told = f"seed {self.seed}: {self.errors.read_text()[-2000:]}"
        assert process.returncode in (0, -signal.SIGKILL), told

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill a command after some time. It may have ended by itself by then, but not with a lasting error.

        3 stands for an error that passes: the test runs the command again, and shows the error as a warning.
        """
        time.sleep(0.7 + self.draw.random() * 1.5)
        process.kill()
        process.wait()
        if process.returncode == 3:
            warnings.warn(f"a command ended with 3: {self.errors.read_text()[-1000:]}", stacklevel=2)
            return
        self.check_ended(process)

    def until_done(self, *arguments: str) -> None:
        """Repeat a command until it succeeds."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            process = self.start(*arguments)
            process.wait(DEADLINE_S)
            if process.returncode == 0:
                return
            assert time.monotonic() < deadline, self.errors.read_text()[-2000:]
            time.sleep(0.2)


def contents(client: PersistClient, rendition: RenditionInfo, at: int) -> list[list[str]]:
    """The rows, the errors and the bindings of a rendition at a time, current or not.

    The first position of a rendition is left out, because each has its own.
    """
    assert rendition.pipeline is not None
    found = []
    for shards in (rendition.shards, [rendition.pipeline.errors], [rendition.pipeline.remap]):
        lines: list[str] = []
        for shard in shards:
            with client.reader(shard, purpose="check") as reader:
                found_there = reader.snapshot(at).to_table()
                kept = [name for name in found_there.column_names if name != "begin"]
                lines += map(str, found_there.select(kept).to_pylist())
        found.append(sorted(lines))
    return found


def changes(client: PersistClient, rendition: RenditionInfo, after: int) -> list[int]:
    """The times after that one at which a rendition changed."""
    assert rendition.pipeline is not None
    with client.reader(rendition.pipeline.remap, purpose="check") as reader:
        upper, listen = reader.upper(), reader.listen(after)
        times: set[int] = set()
        while listen.frontier < upper:
            for event in listen.next():
                if isinstance(event, Updates):
                    times.update(event.table[TIME].to_pylist())
        return sorted(times)


def final(client: PersistClient, name: str = "orders") -> list[Any]:
    """The rows, the errors and what is bound in all. Where steps ended does not count."""
    controller = StorageController(client)
    found, errors, _ = contents(
        client, controller.describe(name).holding, controller.frontiers(name).upper - 1
    )
    bound = offsets(controller, name)[1].select(["source", "partition", "position", "identity", "total"])
    return [found, errors, sorted(map(str, bound.to_pylist()))]


def bound(commands: Commands, name: str = "orders", at: int | None = None) -> dict[int, int]:
    """The next offsets of a collection. Nothing is bound if there is none yet."""
    with PersistClient.open(commands.url) as client, suppress(CollectionNotFound, AsOfNotYetAvailable):
        found = offsets(StorageController(client), name, at)[1]
        return dict(zip(map(int, found["partition"].to_pylist()), found["position"].to_pylist(), strict=True))
    return {}


def wait_for_more(commands: Commands, name: str = "orders") -> None:
    """Wait until the collection has more messages."""
    before, deadline = sum(bound(commands, name).values()), time.monotonic() + DEADLINE_S
    while sum(bound(commands, name).values()) <= before:
        assert time.monotonic() < deadline, commands.errors.read_text()[-2000:]
        time.sleep(0.1)


def changed(commands: Commands) -> int:
    """How often the current rendition changed after it took over."""
    with PersistClient.open(commands.url) as client:
        holding = StorageController(client).describe("orders").holding
        return len(changes(client, holding, holding.held_from))


def delete(topic: KafkaTopic, *reached: Mapping[int, int]) -> None:
    """Delete what all of them have."""
    least = {part: min(each.get(part, 0) for each in reached) for part in range(PARTITIONS)}
    topic.delete_below({part: offset for part, offset in least.items() if offset > 0})


def check(orders: Orders, envelope: str, found: list[str]) -> None:
    """The rows are those of the messages that the broker has acknowledged."""
    assert orders.failed == []
    assert len(orders.acknowledged) > 100
    rows: Counter[str] = Counter()
    for number in sorted(orders.acknowledged):
        id_, is_bad = number % KEYS if envelope == "Upsert" else number, number % 7 == 6
        if envelope == "Upsert":
            rows = Counter({each: 1 for each in rows if f"'id': {id_}," not in each})
        if not is_bad:
            rows[str({"id": id_, "name": str(number), DIFF: 1})] += 1
    assert Counter(found) == rows


@pytest.mark.parametrize("envelope", ["None", "Upsert"])
def test_kills_while_a_copy_is_made_and_takes_over(tmp_path: Path, kafka: Broker, envelope: str) -> None:
    topic = KafkaTopic(kafka, PARTITIONS)
    keys = KEYS if envelope == "Upsert" else 0
    with Commands(tmp_path) as commands, Commands(tmp_path, "straight") as straight:
        for each, group in ((commands, topic.group), (straight, "straight")):
            source = {"kafka": topic.block(group=group), "format": {"json": {}}, "envelope": envelope}
            each.write(each.name, "orders", source, COLUMNS)
        with Orders(topic, keys, encode) as orders:
            other, feed = straight.feed("straight"), commands.feed("location")
            for _ in range(3):
                commands.kill(feed)
                feed = commands.feed("location")
                commands.kill(commands.start("collection", "handover", "orders", "--shards", "3"))
                delete(topic, topic.committed(), bound(straight))
            commands.until_done("collection", "handover", "orders", "--shards", "3")
            for _ in range(7):
                # The handover is up to 10 seconds ahead.
                commands.kill(feed)
                feed = commands.feed("location")
                delete(topic, topic.committed(), bound(straight))
        other.terminate()
        straight.ended(other)
        feed.kill()
        for each in (straight, commands):
            each.ended(each.feed(each.name, "--once"))
        with PersistClient.open(commands.url) as client, PersistClient.open(straight.url) as other_client:
            assert final(client) == final(other_client), commands.seed
            check(orders, envelope, final(client)[0])
            one, two = StorageController(client).describe("orders").held
            assert len(two.shards) == 3
            at = two.held_from - 1
            assert contents(client, one, at) == contents(client, two, at), commands.seed
            assert changes(client, two, at)


@pytest.mark.parametrize("envelope", ["None", "Upsert"])
def test_kills_while_a_snapshot_is_restored_and_fed_on(tmp_path: Path, kafka: Broker, envelope: str) -> None:
    """It is restored over the collection, and into a new one. Both read again what came after it."""
    topic = KafkaTopic(kafka, PARTITIONS)
    own = topic.block()
    del own["group"]
    with Commands(tmp_path) as commands, Commands(tmp_path, "straight") as straight:
        for name, collection in (("location", "orders"), ("copy", "copy"), ("straight", "orders")):
            source = {"kafka": own, "format": {"json": {}}, "envelope": envelope}
            commands.write(name, collection, source, COLUMNS)
        with Orders(topic, KEYS if envelope == "Upsert" else 0, encode) as orders:
            other, feed = straight.feed("straight"), commands.feed("location")
            for _ in range(2):
                commands.kill(feed)
                feed = commands.feed("location")
            wait_for_more(commands)
            with PersistClient.open(commands.url) as client:
                snapshot = taken(client, tmp_path / "snapshot")
            wait_for_more(commands)
            delete(topic, bound(commands, at=snapshot.manifest.as_of), bound(straight))
            commands.kill(feed)
            for options in (("orders", "--yes"), ("copy", "--create")):
                name, option = options
                restore = ("collection", "restore", name, str(tmp_path / "snapshot"))
                commands.kill(commands.start(*restore, option))
                commands.until_done(*restore, "--yes", *(["--create"] if name == "copy" else []))
            feeds = [commands.feed("location"), commands.feed("copy")]
            for number in range(6):
                commands.kill(feeds[number % 2])
                feeds[number % 2] = commands.feed(("location", "copy")[number % 2])
                delete(topic, bound(commands), bound(commands, "copy"), bound(straight))
        other.terminate()
        straight.ended(other)
        for each in feeds:
            each.kill()
        for of, name in ((straight, "straight"), (commands, "location"), (commands, "copy")):
            of.ended(of.feed(name, "--once"))
        with PersistClient.open(commands.url) as client, PersistClient.open(straight.url) as other_client:
            wanted = final(other_client)
            assert final(client) == wanted, commands.seed
            assert final(client, "copy") == wanted, commands.seed
            check(orders, envelope, wanted[0])


def test_kills_while_raw_messages_are_kept_and_decoded_twice(tmp_path: Path, kafka: Broker) -> None:
    """The first decoder is wrong: it decodes keys. The second one has only what is kept raw."""
    topic = KafkaTopic(kafka, PARTITIONS)
    wrong = {
        "collection": {"name": "raw", "columns": {"value": "key", "key": "value"}},
        "format": {"json": {}},
    }
    right = {"collection": {"name": "raw"}, "format": {"json": {}}}
    with Commands(tmp_path) as commands, Commands(tmp_path, "straight") as straight:
        kept = {"format": {"raw": {}}, "include": PARTS}
        commands.write("raw", "raw", {"kafka": topic.block(), **kept}, RAW)
        straight.write("straight", "raw", {"kafka": topic.block(group="straight"), **kept}, RAW)
        commands.write("wrong", "orders", wrong, COLUMNS)
        commands.write("right", "orders", right, COLUMNS)
        commands.write("again", "again", right, COLUMNS)
        with Orders(topic, 0, encode) as orders:
            other = straight.feed("straight")
            feeds = {"raw": commands.feed("raw")}
            of = {"raw": (), "wrong": ("--rendition", "r1"), "right": ("--rendition", "r2")}

            def kills(count: int) -> None:
                for _ in range(count):
                    name = commands.draw.choice(sorted(feeds))
                    commands.kill(feeds[name])
                    feeds[name] = commands.feed(name, *of[name])
                    delete(topic, topic.committed(), bound(straight, "raw"))

            wait_for_more(commands, "raw")
            feeds["wrong"] = commands.feed("wrong", *of["wrong"])
            kills(4)
            feeds["right"] = commands.feed("right", *of["right"])
            kills(4)
            handover = ("collection", "handover", "orders", *of["right"])
            commands.kill(commands.start(*handover))
            commands.until_done(*handover)
            deadline = time.monotonic() + DEADLINE_S
            while changed(commands) <= 10:
                assert time.monotonic() < deadline
                kills(2)
        other.terminate()
        straight.ended(other)
        for each in feeds.values():
            each.kill()
        straight.ended(straight.feed("straight", "--once"))
        for name in ("raw", "right", "again"):
            commands.ended(commands.feed(name, "--once", *of.get(name, ())))
        with PersistClient.open(commands.url) as client, PersistClient.open(straight.url) as other_client:
            assert final(client, "raw") == final(other_client, "raw"), commands.seed
            check(orders, "None", final(client)[0])
            controller = StorageController(client)
            info, again = controller.describe("orders"), controller.describe("again").holding
            begin = info.holding.held_from
            times = changes(client, info.holding, begin)
            for at in (begin, *commands.draw.sample(times, 9), times[-1]):
                assert contents(client, info.holding, at) == contents(client, again, at), (at, commands.seed)
            # Earlier times still have what the wrong decoder made.
            assert "None" in contents(client, info.held[0], begin - 1)[0][0]
            assert any("bad " in each for each in contents(client, info.holding, times[-1])[1])
