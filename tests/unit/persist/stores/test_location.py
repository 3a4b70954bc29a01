"""A location pairs the stores that belong together and no others, however its creation went."""

import json
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import CorruptBlob, LocationMismatch, StorageError, StoreUnreachable, VersionTooNew
from holdfast.persist.stores import Blob, Consensus, Location, MemoryBlob, MemoryConsensus, Put
from holdfast.persist.stores import location as location_module
from holdfast.persist.stores.location import BLOB_KEY, CONSENSUS_KEY
from holdfast.persist.stores.traits import NOTHING_KNOWN
from holdfast.persist.stores.url import open_blob
from testbed.faults import (
    Fault,
    FaultyBlob,
    FaultyConsensus,
    ProcessDeath,
    ScriptedPlan,
    SeededPlan,
)


def _ids(blob: Blob, consensus: Consensus) -> tuple[bytes | None, bytes | None]:
    entry = consensus.heads([CONSENSUS_KEY]).get(CONSENSUS_KEY)
    return blob.get(BLOB_KEY), None if entry is None else entry.data


def test_both_stores_hold_the_same_bytes() -> None:
    blob, consensus = MemoryBlob(), MemoryConsensus()
    location = Location.of(blob, consensus)

    in_blob, in_consensus = _ids(blob, consensus)

    assert in_blob == in_consensus
    assert in_blob is not None
    assert json.loads(in_blob) == {"format": 1, "location_id": str(location.location_id)}
    assert [entry.seqno for entry in consensus.scan(CONSENSUS_KEY, 0, 10)] == [1]


def test_the_id_is_found_again() -> None:
    blob, consensus = MemoryBlob(), MemoryConsensus()
    first = Location.of(blob, consensus)

    assert Location.of(blob, consensus).location_id == first.location_id
    assert Location.of(blob, consensus, create=False).location_id == first.location_id


def test_two_locations_have_two_ids() -> None:
    one = Location.of(MemoryBlob(), MemoryConsensus())
    other = Location.of(MemoryBlob(), MemoryConsensus())

    assert one.location_id != other.location_id


def test_stores_of_two_locations_are_refused_and_their_ids_not_told() -> None:
    one = Location.of(MemoryBlob("one"), MemoryConsensus("one"))
    other = Location.of(MemoryBlob("other"), MemoryConsensus("other"))

    with pytest.raises(LocationMismatch, match="belong to different locations") as caught:
        Location.of(one.blob, other.consensus)
    assert caught.value.hint
    # Whoever may write one of the two could make it the partner of the other by its id.
    assert not re.search("[0-9a-f]{8}-", str(caught.value) + caught.value.hint)


def test_a_blob_store_whose_consensus_is_new_is_refused() -> None:
    one = Location.of(MemoryBlob("one"), MemoryConsensus("one"))
    empty = MemoryConsensus("empty")

    with pytest.raises(LocationMismatch, match="'empty' does not"):
        Location.of(one.blob, empty)
    assert empty.list_keys() == []


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("lost", ["file", "contents"])
@pytest.mark.parametrize("apart", [True, False])
def test_a_lost_consensus_file_is_never_taken_for_a_location_that_does_not_exist(
    tmp_path: Path, read_only: bool, lost: str, apart: bool
) -> None:
    log, blobs = tmp_path / "consensus.sqlite", tmp_path / "blob"
    urls: dict[str, Any] = (
        {"blob": f"file://{blobs}", "consensus": f"sqlite://{log}"}
        if apart
        else {"url": f"file://{tmp_path}"}
    )
    Location.open(**urls).close()
    for path in tmp_path.glob("consensus.sqlite*"):
        path.unlink()
    if lost == "contents":
        log.touch()
    with pytest.raises(LocationMismatch, match=f"blob folder {blobs} belongs to a location, but") as raised:
        Location.open(**urls, read_only=read_only, create=False)
    where = f"file://{blobs} --consensus sqlite://{log}" if apart else f"file://{tmp_path}"
    assert raised.value.hint.endswith(f"run: holdfast persist recover {where}")
    assert "init" not in raised.value.hint


def test_a_location_that_another_process_creates_meanwhile_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}"

    def late(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(location_module, "open_blob", open_blob)
        Location.open(url).close()
        return open_blob(*args, **more)

    monkeypatch.setattr(location_module, "open_blob", late)
    Location.open(url, create=False).close()


def test_a_used_consensus_store_whose_blob_is_new_is_refused() -> None:
    one = Location.of(MemoryBlob("one"), MemoryConsensus("one"))
    one.consensus.compare_and_set([Put("shard", 1, b"x")])
    empty = MemoryBlob("empty")

    with pytest.raises(LocationMismatch, match=r"'empty' has no location\.json"):
        Location.of(empty, one.consensus)
    assert list(empty.list("")) == []


def test_blobs_that_nobody_claims_are_not_adopted() -> None:
    blob, consensus = MemoryBlob("strange"), MemoryConsensus()
    blob.put("holiday/photo", b"x")

    with pytest.raises(LocationMismatch, match="holiday/photo"):
        Location.of(blob, consensus)
    assert consensus.list_keys() == []
    consensus.compare_and_set(
        [Put(CONSENSUS_KEY, 1, b'{"format": 1, "location_id": "%s"}' % uuid.uuid4().hex.encode())]
    )
    with pytest.raises(LocationMismatch, match=r"has no location\.json"):
        Location.of(blob, consensus)
    assert [meta.key for meta in blob.list("")] == ["holiday/photo"]


def test_a_missing_location_is_not_made_for_a_reader(tmp_path: Path) -> None:
    blob, consensus = MemoryBlob(), MemoryConsensus()

    with pytest.raises(StoreUnreachable, match="no location in"):
        Location.of(blob, consensus, create=False)
    with pytest.raises(StoreUnreachable):
        Location.open(f"file://{tmp_path}/nothing", read_only=True)
    with pytest.raises(StoreUnreachable):
        Location.open(f"file://{tmp_path}/nothing", create=False)

    assert _ids(blob, consensus) == (None, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", [Fault.DEATH_BEFORE, Fault.DEATH_AFTER])
@pytest.mark.parametrize("number", range(13))
def test_a_creation_cut_short_anywhere_is_completed_by_the_next(number: int, fault: Fault) -> None:
    blob, consensus = MemoryBlob(), MemoryConsensus()
    plan = ScriptedPlan({number: fault})
    try:
        Location.of(FaultyBlob(blob, plan), FaultyConsensus(consensus, plan))
        died = False
    except ProcessDeath:
        died = True
    decided = _ids(blob, consensus)[1]

    location = Location.of(blob, consensus)

    assert died == (plan.seen > number)
    assert decided is None or json.loads(decided)["location_id"] == str(location.location_id)
    assert len(set(_ids(blob, consensus))) == 1


def test_a_death_is_met_at_every_step_of_a_creation() -> None:
    """The range of the test above covers a whole creation."""
    plan = ScriptedPlan({})
    Location.of(FaultyBlob(MemoryBlob(), plan), FaultyConsensus(MemoryConsensus(), plan))

    assert plan.seen == 13


def test_a_creation_cut_short_is_told_to_a_reader() -> None:
    blob, consensus = MemoryBlob(), MemoryConsensus()
    plan = ScriptedPlan({0: Fault.DEATH_BEFORE}, matches=lambda operation: operation.name == "blob.put")
    with pytest.raises(ProcessDeath):
        Location.of(FaultyBlob(blob, plan), FaultyConsensus(consensus, plan))

    with pytest.raises(StoreUnreachable, match="never completed"):
        Location.of(blob, consensus, create=False)

    assert blob.get(BLOB_KEY) is None


@pytest.mark.parametrize("seed", range(40))
def test_creation_under_faults_ends_in_one_id(seed: int) -> None:
    blob, consensus = MemoryBlob(), MemoryConsensus()
    ids = set()
    for process in range(6):
        plan = SeededPlan(seed * 100 + process, rate=0.3, death_rate=0.05)
        try:
            ids.add(Location.of(FaultyBlob(blob, plan), FaultyConsensus(consensus, plan)).location_id)
        except (StorageError, ProcessDeath):
            continue

    ids.add(Location.of(blob, consensus).location_id)

    assert len(ids) == 1
    assert len(set(_ids(blob, consensus))) == 1


class Interposed(MemoryBlob):
    """Another process creates the location and works in it while this one reads `location.json`."""

    def __init__(self, consensus: Consensus, *, at: int) -> None:
        super().__init__()
        self._consensus = consensus
        self._calls = -1
        self._at = at
        self.created: uuid.UUID | None = None

    def get(self, key: str) -> bytes | None:
        self._calls += 1
        before = super().get(key)
        if self._calls == self._at:
            self._calls = -1000
            other = Location.of(self, self._consensus)
            other.consensus.compare_and_set([Put("shard", 1, b"x")])
            other.blob.put("shard/part", b"x")
            self.created = other.location_id
        return before


class Overtaken(MemoryConsensus):
    """Another process creates the location and works in it right after this one saw none."""

    def __init__(self, blob: Blob) -> None:
        super().__init__()
        self._blob = blob
        self._first = True
        self.created: uuid.UUID | None = None

    def heads(self, keys: object, known: object = NOTHING_KNOWN) -> dict:  # type: ignore[type-arg]
        before = super().heads(keys, known)  # type: ignore[arg-type]
        if self._first:
            self._first = False
            other = Location.of(self._blob, self)
            self.compare_and_set([Put("shard", 1, b"x")])
            self._blob.put("shard/part", b"x")
            self.created = other.location_id
        return before


def test_another_process_creates_it_between_the_reads() -> None:
    blob = MemoryBlob()
    consensus = Overtaken(blob)

    assert Location.of(blob, consensus).location_id == consensus.created


def test_another_process_creates_it_after_both_reads() -> None:
    consensus = MemoryConsensus()
    blob = Interposed(consensus, at=0)

    assert Location.of(blob, consensus).location_id == blob.created


def test_another_process_completes_it_after_the_entry_was_read() -> None:
    consensus = MemoryConsensus()
    blob = Interposed(consensus, at=0)
    plan = ScriptedPlan({0: Fault.DEATH_BEFORE}, matches=lambda operation: operation.name == "blob.put")
    cut_short = MemoryBlob()
    with pytest.raises(ProcessDeath):
        Location.of(FaultyBlob(cut_short, plan), FaultyConsensus(consensus, plan))

    assert Location.of(blob, consensus).location_id == blob.created


def test_an_id_that_cannot_be_read_is_told() -> None:
    for data in (
        b"",
        b"{}",
        b"[1]",
        b'{"format": 1, "location_id": 7}',
        b'{"format": 1, "location_id": "x"}',
        b"\xff",
    ):
        consensus, blob = MemoryConsensus(), MemoryBlob()
        Location.of(blob, consensus)
        blob.put(BLOB_KEY, data)

        with pytest.raises(CorruptBlob, match=r"location\.json in memory blob"):
            Location.of(blob, consensus)


def test_a_later_format_is_told() -> None:
    consensus, blob = MemoryConsensus(), MemoryBlob()
    consensus.compare_and_set([Put(CONSENSUS_KEY, 1, b'{"format": 2, "somewhere": "else"}')])

    with pytest.raises(VersionTooNew, match="format 2"):
        Location.of(blob, consensus)
    assert list(blob.list("")) == []


def test_processes_that_open_a_new_location_at_once_agree(tmp_path: Path) -> None:
    code = (
        "import sys; from holdfast.persist.stores import Location; print('ready', flush=True);"
        "sys.stdin.readline(); location = Location.open(sys.argv[1]); print(location.location_id);"
        "location.close()"
    )
    url = f"file://{tmp_path}/new/location"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ids = {process.communicate()[0].strip() for process in processes}

    assert len(ids) == 1
    location = Location.open(url, read_only=True)
    assert ids == {str(location.location_id)}
    location.close()
