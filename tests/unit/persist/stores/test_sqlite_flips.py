"""One bit of each byte of a SQLite store is flipped: the answer is right, or it is an error of ours.

Bytes of pages that hold nothing are zero and many: of those some are flipped. HOLDFAST_EVERY_FLIP=1 flips all
of them, and reads the whole location each time.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import CorruptBlob, HoldfastError
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.state.codec import decode_diff
from holdfast.persist.state.lock import LOCK_KEY, decode_lock
from holdfast.persist.stores import Entry, Location, SqliteConsensus
from holdfast.persist.stores.location import CONSENSUS_KEY, decode_location
from holdfast.sqlite_guard import CHECK_AT_OPEN_BYTES
from holdfast.stash import Stash, StashUpdate, open_stash
from unit.persist.open_stores import SCHEMA, SHARD, rows

EVERY = bool(os.environ.get("HOLDFAST_EVERY_FLIP"))
QUICK = PersistConfig(retry_deadline_s=0.0, maintenance="off", rollup_every=100)
UPPER = 4
MARGIN = 16


def places(data: bytes, *, every: bool) -> Iterator[int]:
    """Where to flip: everything that is not zero, what is near it, and some of the rest."""
    for at in range(len(data)):
        if every or at % 64 == 0 or any(data[max(0, at - MARGIN) : at + MARGIN]):
            yield at


def flip_each(file: Path, judge: Callable[[], str], *, step: int = 1) -> Counter[str]:
    """Flip one bit of each place, put it back, and count what `judge` says."""
    data = file.read_bytes()
    chance = random.Random(7)
    outcomes: Counter[str] = Counter()
    with file.open("r+b", buffering=0) as opened:
        for at in list(places(data, every=EVERY))[:: 1 if EVERY else step]:
            flipped = data[at] ^ 1 << chance.randrange(8)
            opened.seek(at)
            opened.write(bytes([flipped]))
            try:
                outcomes[judge()] += 1
            except HoldfastError as error:
                outcomes[type(error).__name__] += 1
            except BaseException as error:
                raise AssertionError(
                    f"byte {at} of {file.name}, {data[at]} -> {flipped}: {error!r}"
                ) from error
            opened.seek(at)
            opened.write(data[at : at + 1])
    assert file.read_bytes() == data
    return outcomes


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A location with a log, a part, and the write lock's rows."""
    folder = tmp_path_factory.mktemp("flips") / "here"
    with PersistClient.open(f"file://{folder}", config=QUICK) as client:
        writer = client.writer(SHARD, SCHEMA, purpose="w")
        for time in range(UPPER):
            writer.compare_and_append(rows(time), time, time + 1)
        with client.exclusive("job"):
            pass
    return folder


def contents(folder: Path) -> Any:
    """What a process finds that reads the location."""
    with PersistClient(
        Location.open(f"file://{folder}", read_only=True), mode="read", config=QUICK
    ) as client:
        reader = client.reader(SHARD, purpose="r")
        upper = reader.upper()
        return client.shards(), upper, sorted(map(str, reader.snapshot(upper - 1).to_table().to_pylist()))


def logs(file: Path) -> dict[str, list[Entry]]:
    store = SqliteConsensus(file, create=False, read_only=True)
    try:
        found = {key: store.scan(key, 0, 1000) for key in store.list_keys()}
        assert {key: log[-1] for key, log in found.items()} == {
            key: Entry(head.seqno, head.data) for key, head in store.heads(list(found)).items()
        }
        return found
    finally:
        store.close()


def refuse_changed(found: dict[str, list[Entry]], right: dict[str, list[Entry]]) -> None:
    """Rows may differ in their bytes only, which their own checksums tell: raises then."""
    assert {key: [e.seqno for e in log] for key, log in found.items()} == {
        key: [e.seqno for e in log] for key, log in right.items()
    }
    for key, log in found.items():
        for entry, sound in zip(log, right[key], strict=True):
            if entry == sound:
                continue
            if key == CONSENSUS_KEY:
                if decode_location(entry.data, key) != decode_location(sound.data, key):
                    raise CorruptBlob(key, "the id that the blobs have", "another one")
            elif key == LOCK_KEY:
                decode_lock(entry)
                raise AssertionError(f"{entry} passed for {sound}")
            else:
                decode_diff(entry.data, key)
                raise AssertionError(f"{entry} passed for {sound}")


@pytest.mark.long
def test_no_flipped_bit_of_a_consensus_file_gives_a_wrong_answer(location: Path) -> None:
    file = location / "consensus.sqlite"
    right, sound = contents(location), logs(file)

    def judge() -> str:
        found = logs(file)
        if EVERY:
            assert contents(location) == right
        if found != sound:
            refuse_changed(found, sound)
            return "the same id"
        return "right"

    outcomes = flip_each(file, judge)
    assert outcomes["CorruptBlob"] > 1000, outcomes
    assert outcomes["right"] > 200, outcomes


def test_no_flipped_bit_gives_a_process_a_wrong_answer(location: Path) -> None:
    """The whole way from the file to the rows, for some of the bytes."""
    right = contents(location)

    def judge() -> str:
        assert contents(location) == right
        return "right"

    outcomes = flip_each(location / "consensus.sqlite", judge, step=20)
    assert outcomes["CorruptBlob"] > 50, outcomes


def test_no_flipped_bit_of_a_blob_gives_a_wrong_answer(location: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(location, tmp_path / "here")
    right = contents(folder)

    def judge() -> str:
        assert contents(folder) == right
        return "right"

    for file in sorted(path for path in (folder / "blob").rglob("*") if path.is_file()):
        flip_each(file, judge, step=1 if file.name == "location.json" else 11)


def contents_of(stash: Stash) -> Any:
    """Everything that a process can read from a stash."""
    frontiers = stash.frontiers()
    times = frontiers.since, frontiers.upper
    changes = [sorted(stash.changes(lower)) for lower in range(frontiers.since + 1, frontiers.upper)]
    return (
        times,
        stash.holds(),
        [(as_of, stash.sizes(as_of), sorted(stash.rows(as_of))) for as_of in range(*times)],
        changes,
    )


def stash_contents(file: Path) -> Any:
    with open_stash(f"sqlite://{file}", read_only=True) as stash:
        return contents_of(stash)


def append_and_consolidate(stash: Stash) -> None:
    """Everything that a process can write. It reads rows first."""
    upper = stash.frontiers().upper
    stash.append([StashUpdate(2, b"new", b"row", 1)], upper, sole=ONLY)
    stash.allow_compaction(upper)
    stash.consolidate()
    stash.hold("another", upper)


ONLY = StashUpdate(3, b"token", b"1", 1)


def make_stash(file: Path, rows: int = 0, commits: int = 5) -> None:
    """A stash with some history, and `rows` rows of 300 bytes."""
    with open_stash(f"sqlite://{file}", create=True, names={1: "one", 2: "two"}) as stash:
        for time in range(commits):
            stash.append(
                [
                    StashUpdate(1 + time % 2, b"key%d" % time, b"value", 1),
                    *([ONLY] if time == 0 else []),
                    *(StashUpdate(4, b"%d" % row, b"%d" % time * 300, 1) for row in range(rows // commits)),
                ],
                time,
            )
        stash.append(
            [StashUpdate(1, b"key0", b"value", -1), StashUpdate(2, b"large", bytes(range(256)) * 20, 3)],
            commits,
        )
        stash.hold("somebody", 1)


def every_file_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Don't check pages. So nothing but the digests finds a flipped bit."""
    for module in ("holdfast.stash.sqlite", "holdfast.sqlite_guard"):
        monkeypatch.setattr(f"{module}.CHECK_AT_OPEN_BYTES", 0)


@pytest.mark.long
def test_no_flipped_bit_of_a_stash_gives_a_wrong_answer(tmp_path: Path) -> None:
    file = tmp_path / "stash.db"
    make_stash(file)
    right = stash_contents(file)
    assert len(right[2]) == 6

    def judge() -> str:
        assert stash_contents(file) == right
        return "right"

    outcomes = flip_each(file, judge, step=4)
    assert outcomes["CorruptBlob"] > 300, outcomes


@pytest.mark.long
def test_no_flipped_bit_of_an_open_stash_gives_a_wrong_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every_file_is_large(monkeypatch)
    file = tmp_path / "stash.db"
    make_stash(file)
    with open_stash(f"sqlite://{file}", read_only=True) as stash:
        right = contents_of(stash)

        def judge() -> str:
            stash._damage = None  # type: ignore[attr-defined]
            assert contents_of(stash) == right
            return "right"

        outcomes = flip_each(file, judge, step=3)
    assert outcomes["CorruptBlob"] > 300, outcomes


@pytest.mark.long
def test_no_flipped_bit_of_a_stash_is_written_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process writes to the damaged file. Then it is right, or raises an error when somebody reads it."""
    every_file_is_large(monkeypatch)
    file, flipped, expected = (tmp_path / name for name in ("stash.db", "flipped.db", "expected.db"))
    make_stash(file)
    before = stash_contents(file)
    shutil.copyfile(file, expected)
    with open_stash(f"sqlite://{expected}", read_only=False) as stash:
        append_and_consolidate(stash)
    after = stash_contents(expected)

    def judge() -> str:
        shutil.copyfile(file, flipped)
        for name in ("-wal", "-shm"):
            Path(f"{flipped}{name}").unlink(missing_ok=True)
        try:
            with open_stash(f"sqlite://{flipped}", read_only=False) as stash:
                append_and_consolidate(stash)
        except CorruptBlob:
            pass
        else:
            assert stash_contents(flipped) == after
            return "right"
        found = stash_contents(flipped)
        assert found[0][1] > before[0][1] or found == before
        return "stopped"

    outcomes = flip_each(file, judge, step=10)
    assert outcomes["CorruptBlob"] > 100, outcomes


@pytest.mark.long
def test_no_flipped_bit_of_a_large_stash_gives_a_wrong_answer(tmp_path: Path) -> None:
    """Each page gets a flip in its header, in the numbers after it, and anywhere else."""
    file = tmp_path / "stash.db"
    make_stash(file, rows=14_000, commits=40)
    size = file.stat().st_size
    assert size > CHECK_AT_OPEN_BYTES
    chance = random.Random(11)
    with open_stash(f"sqlite://{file}", read_only=True) as stash, file.open("r+b", buffering=0) as opened:

        def read() -> Any:
            upper = stash.frontiers().upper
            rows = Counter(hash(row) for row in stash.rows(upper - 1))
            return upper, stash.sizes(upper - 1), rows, list(stash.changes(upper - 2)), stash.holds()

        right = read()
        outcomes: Counter[str] = Counter()
        for page in chance.sample(range(size // 4096), 40):
            at = page * 4096 + chance.choice(
                (chance.randrange(12), chance.randrange(8, 200), chance.randrange(4096))
            )
            before = os.pread(opened.fileno(), 1, at)
            os.pwrite(opened.fileno(), bytes([before[0] ^ 1 << chance.randrange(8)]), at)
            stash._damage = None  # type: ignore[attr-defined]
            try:
                assert read() == right, f"byte {at}"
                outcomes["right"] += 1
            except HoldfastError as error:
                outcomes[type(error).__name__] += 1
            os.pwrite(opened.fileno(), before, at)
    assert outcomes["CorruptBlob"] > 10, outcomes
