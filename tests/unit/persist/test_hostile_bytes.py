"""Stored bytes that are not what was written: the right answer or a named error, never anything else.

One small shard with all that a shard can have; each of its stored objects is damaged in turn, and a new
process reads everything. What it finds must equal what it found before, or be `CorruptBlob` or
`VersionTooNew` that names a key. Where a checksum was made to fit, any error of ours will do.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CorruptBlob, HoldfastError, LocationMismatch, VersionTooNew
from holdfast.persist import PersistClient, PersistConfig, Updates
from holdfast.persist.state.codec import DIFF_MAGIC, ROLLUP_MAGIC, seal_frame
from holdfast.persist.stores import (
    Blob,
    BlobMeta,
    Consensus,
    Entry,
    Expect,
    Head,
    Location,
    LogRow,
    Put,
)
from holdfast.persist.stores.traits import NOTHING_KNOWN
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, HandClock, Stores, changes, rows

Blobs = Mapping[str, bytes]
Logs = Mapping[str, Sequence[Entry]]
FRAME_HEADER = 12


@dataclass(frozen=True)
class Stored:
    """All bytes of a location."""

    blobs: Blobs
    logs: Logs

    def with_blob(self, key: str, data: bytes) -> "Stored":
        return Stored({**self.blobs, key: data}, self.logs)

    def with_row(self, key: str, seqno: int, data: bytes) -> "Stored":
        changed = [Entry(e.seqno, data) if e.seqno == seqno else e for e in self.logs[key]]
        return Stored(self.blobs, {**self.logs, key: changed})

    def places(self) -> Iterator[tuple[str, bytes, Callable[[bytes], "Stored"]]]:
        """Each object: its name, its bytes, and what puts others in its place."""
        for key, data in self.blobs.items():
            yield key, data, lambda new, key=key: self.with_blob(key, new)
        for key, log in self.logs.items():
            for seqno, data in log:
                yield (
                    f"{key} log {seqno}",
                    data,
                    lambda new, key=key, seqno=seqno: self.with_row(key, seqno, new),
                )


class FrozenBlob(Blob):
    """Blobs that are only read."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    @property
    def description(self) -> str:
        return "frozen blob"

    def get(self, key: str) -> bytes | None:
        return self._blobs.get(key)

    def put(self, key: str, data: bytes | memoryview) -> None:
        raise AssertionError(f"a reader wrote {key}")

    def delete(self, key: str) -> bool:
        raise AssertionError(f"a reader deleted {key}")

    def list(self, prefix: str) -> Iterator[BlobMeta]:
        return iter(
            BlobMeta(key, len(self._blobs[key]), 0) for key in sorted(self._blobs) if key.startswith(prefix)
        )


class FrozenConsensus(Consensus):
    """Logs that are only read."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs

    @property
    def description(self) -> str:
        return "frozen consensus"

    def heads(self, keys: Sequence[str], known: Mapping[str, int] = NOTHING_KNOWN) -> dict[str, Head]:
        digests = {key: dict(self.digests(key, 0, 1 << 20)) for key in known}
        return {
            key: Head(*self._logs[key][-1], digests.get(key, {}).get(known.get(key, 0)))
            for key in keys
            if key in self._logs
        }

    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        return [entry for entry in self._logs.get(key, ()) if entry.seqno >= from_seqno][:limit]

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        raise AssertionError(f"a reader wrote {puts}")

    def truncate(self, key: str, seqno: int, known: LogRow | None = None) -> int:
        raise AssertionError(f"a reader truncated {key}")

    def list_keys(self) -> list[str]:
        return sorted(self._logs)


@cache
def stored() -> Stored:
    """Two shards with rollups, garbage, a truncated log, inline parts, Parquet parts and holds."""
    stores = Stores()
    settings = {"rollup_every": 5, "compaction_fanin": 3, "gc_grace_s": 1e6, "hostname": "h"}
    inline, large = stores.open(**settings), stores.open(**settings, inline_max_bytes=0)
    for shard in (SHARD, OTHER):
        for time in range(7):
            client = large if time in (0, 1, 5) else inline
            client.writer(shard, SCHEMA, purpose="w").compare_and_append(
                rows(time, time + 1, value=shard[-1]), time, time + 1
            )
            if time == 3:
                inline.critical_since(shard, purpose="c")
                inline.maintain(shard)
        inline.reader(shard, purpose="r")
    blobs, logs = stores.stored()
    sound = {key: data for key, data in blobs.items() if data is not None}
    kinds = {key.split("/")[1][0] for key in sound if "/" in key}
    assert kinds == {"c", "v", "w"}, "digests, rollups and parts"
    assert all(logs[shard][0].seqno > 1 for shard in (SHARD, OTHER)), "truncated"
    return Stored(sound, logs)


@dataclass(frozen=True)
class Refused:
    """A read that ended in an error that it may end in."""

    said: str


def answer(stored: Stored) -> list[Any]:
    """What a new process finds that reads the shard in every way, each by itself."""
    blob, consensus = FrozenBlob(stored.blobs), FrozenConsensus(stored.logs)
    location = Location.of(blob, consensus, create=False)
    settings = PersistConfig(retry_deadline_s=0.0, maintenance="off")
    with PersistClient(location, mode="read", config=settings, clock=HandClock()) as client:
        reader = client.reader(SHARD, purpose="test")
        since, upper = reader.since(), reader.upper()
        listen = reader.listen(since)
        reads: list[Callable[[], Any]] = [
            lambda: (since, upper, client.inspect(SHARD).to_json()),
            lambda: sorted(map(str, reader.snapshot(upper - 1).to_table().to_pylist())),
            lambda: [row for batch in reader.snapshot(upper - 1) for row in batch.to_pylist()],
            lambda: [changes(event.table) for event in listen.next(0) if isinstance(event, Updates)],
        ]
        return [found_by(read) for read in reads]


def found_by(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (CorruptBlob, VersionTooNew) as error:
        return Refused(str(error))


@cache
def right_answer() -> list[Any]:
    return answer(stored())


def check(name: str, damaged: Stored) -> bool:
    """Whether every way of reading that needs the object refused it; none may give a wrong answer."""
    try:
        found = answer(damaged)
    except LocationMismatch:
        assert name in ("location.json", "location log 1")
        return True
    except (CorruptBlob, VersionTooNew) as error:
        found = [Refused(str(error))] * len(right_answer())
    for each, right in zip(found, right_answer(), strict=True):
        if isinstance(each, Refused):
            assert any(key in each.said for key in (name, SHARD, "location")), f"{each.said} names no key"
        else:
            assert each == right, f"a wrong answer after {name} was damaged"
    return any(isinstance(each, Refused) for each in found)


def is_needed(name: str) -> bool:
    """Whether reading the shard needs this object, whatever is in it."""
    try:
        place = next(place for place in stored().places() if place[0] == name)
        return check(name, place[2](b""))
    except StopIteration:
        raise AssertionError(name) from None


def test_the_undamaged_shard_is_worth_the_trouble() -> None:
    (_, upper, info_json), table, streamed, heard = right_answer()
    info = json.loads(info_json)
    assert upper == 7
    assert len(table) == len(streamed) > 5
    assert heard
    assert info["inline_parts"] > 0
    assert info["parts"] > info["inline_parts"]
    needed = [name for name, _, _ in stored().places() if is_needed(name)]
    assert {"location.json", "location log 1"} <= {*needed}
    assert sum("/v" in name for name in needed) == 1, "the newest rollup"
    assert sum("/w" in name for name in needed) >= 1, "a part"
    assert sum(name.startswith(f"{SHARD} log") for name in needed) > 2


@pytest.mark.long
def test_every_single_byte_that_is_flipped_is_noticed_or_harmless() -> None:
    for name, data, damaged in stored().places():
        if OTHER in name:
            continue
        noticed, needed = 0, is_needed(name)
        # What nobody reads can't be noticed: a few are enough.
        for position in range(0, len(data), 1 if needed else 32):
            flipped = bytearray(data)
            flipped[position] ^= 1 << position % 8
            noticed += check(name, damaged(bytes(flipped)))
        if needed and "location" not in name:
            assert noticed == len(data), f"of {len(data)} flips of {name} {noticed} were noticed"


def test_every_truncation_and_addition_is_noticed_or_harmless() -> None:
    for name, data, damaged in stored().places():
        cuts = (data[:cut] for cut in {0, 1, 4, 11, 12, 13, len(data) // 2, len(data) - 1} if cut < len(data))
        for wrong in (*cuts, *(data + more for more in (b"\0", b"}", data))):
            noticed = check(name, damaged(wrong))
            if OTHER not in name and is_needed(name):
                assert noticed, f"{len(wrong)} bytes of {name} passed for {len(data)}"


def test_no_sound_object_passes_for_another() -> None:
    places = [*stored().places()]
    for name, data, damaged in places:
        if OTHER in name:
            continue
        needed = is_needed(name)
        for other, foreign, _ in places:
            noticed = check(name, damaged(foreign))
            if needed and foreign != data:
                assert noticed, f"{other} passed for {name}"


FOREIGN = [
    b"\x00" * 64,
    b"PAR1" + b"\xff" * 32 + b"PAR1",
    DIFF_MAGIC + b"\xff" * 64,
    DIFF_MAGIC + b"\x00\x10" * 6,
    ROLLUP_MAGIC + b"\xff" * 64,
    b"{}",
    b"[" * 100_000,
    b'{"format": 1e999, "location_id": 1}',
    b'{"format": ' + b"9" * 4000 + b"}",
    b'{"format": NaN}',
    b"\xff\xff\xff\xff\x00\x00\x00\x10" * 8,
    seal_frame(DIFF_MAGIC, b""),
    seal_frame(ROLLUP_MAGIC, b""),
    # A field of 2^60 bytes.
    seal_frame(DIFF_MAGIC, b"\x12" + b"\x80" * 8 + b"\x10" + b"s"),
    seal_frame(ROLLUP_MAGIC, b"\x0a" + b"\x80" * 8 + b"\x10" + b"s"),
]


@pytest.mark.parametrize("foreign", FOREIGN, ids=range(len(FOREIGN)))
def test_foreign_bytes_are_refused_wherever_they_are(foreign: bytes) -> None:
    for name, _, damaged in stored().places():
        if OTHER not in name:
            assert check(name, damaged(foreign)) == is_needed(name)


def frames() -> list[tuple[str, bytes, Callable[[bytes], Stored]]]:
    """The needed objects that have a checksum of their own."""
    return [
        place
        for place in stored().places()
        if place[1][:4] in (DIFF_MAGIC, ROLLUP_MAGIC) and OTHER not in place[0] and is_needed(place[0])
    ]


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_forged_frames_end_in_an_answer_or_an_error_of_ours(data: st.DataObject) -> None:
    """The checksum fits: nothing can tell, but nothing may break, hang or fill the memory either."""
    name, sound, damaged = data.draw(st.sampled_from(frames()))
    body = bytearray(sound[FRAME_HEADER:])
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(body)))
        end = data.draw(st.integers(start, min(len(body), start + 12)))
        body[start:end] = data.draw(
            st.binary(max_size=12)
            | st.sampled_from([b"\xff" * 9 + b"\x01", b"\x80" * 8 + b"\x10", bytes(body[:20])])
        )
    try:
        answer(damaged(seal_frame(sound[:4], bytes(body))))
    except HoldfastError:
        pass
    except Exception as error:
        raise AssertionError(f"{name}: {error!r}") from error
