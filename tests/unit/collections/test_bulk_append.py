"""One append of any number of rows, during other writes and handovers, with a record that it happened."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from holdfast.collections import BulkAppend, CollectionWriter, StorageController
from holdfast.errors import BadInput, UpperMismatch
from holdfast.persist import PersistClient, Prepared
from holdfast.tables.loading import load
from unit.collections.stores import SPEC, Stores, counted

ROWS = 3000


def rows(first: int, count: int = ROWS) -> pa.RecordBatch:
    ids = list(range(first, first + count))
    return pa.RecordBatch.from_pydict({"id": ids, "name": [f"name {each}" for each in ids]})


def expected(first: int, count: int = ROWS) -> Counter[tuple[int, str | None]]:
    return Counter((each, f"name {each}") for each in range(first, first + count))


def contents(client: PersistClient) -> Counter[tuple[int, str | None]]:
    with StorageController(client).reader("flights", purpose="test") as reader:
        return counted(reader.snapshot().to_table())


class Place:
    """A collection of three shards whose parts are uploaded, and a writer that is not the one under test."""

    def __init__(self, *, builder_threads: bool = False) -> None:
        self.stores = Stores()
        self.client = self.stores.open(inline_max_bytes=1024, builder_threads=builder_threads)
        self.controller = StorageController(self.client)
        self.info = self.controller.create_collection(SPEC)
        self.writer = self.controller.writer("flights", purpose="test")

    def other(self) -> CollectionWriter:
        client = self.stores.open(inline_max_bytes=1024, builder_threads=False)
        return StorageController(client).writer("flights", purpose="other")

    def bulk(self) -> BulkAppend:
        # So little that some of it is spilled.
        return self.writer.bulk(memory_bytes=512 * 1024)

    def commit(self, steps: Callable[[], Sequence[Prepared]]) -> None:
        self.client.multi_write(steps())

    def blobs(self) -> set[str]:
        return {meta.key for shard in self.info.data_shards for meta in self.stores.blob.list(f"{shard}/")}


@pytest.mark.parametrize("builder_threads", [True, False])
def test_all_rows_come_at_one_time(builder_threads: bool) -> None:
    place = Place(builder_threads=builder_threads)
    with place.bulk() as bulk:
        for first in range(0, ROWS, 500):
            bulk.add(rows(first, 500))
        assert (bulk.rows, bulk.times) == (ROWS, None)
        assert load(place.client, place.writer, bulk, place.commit, at=100) == 101
    assert contents(place.client) == expected(0)
    with place.controller.reader("flights", purpose="test") as reader:
        assert reader.snapshot(99).to_table().num_rows == 0
        assert reader.snapshot(100).to_table().num_rows == ROWS


def test_rows_may_have_their_own_times_and_counts() -> None:
    place = Place()
    with place.bulk() as bulk:
        bulk.add([{"id": 1, "name": "a", "_time": 7, "_diff": 2}, {"id": 2, "name": None, "_time": 9}])
        bulk.add(pa.table({"id": [1], "name": ["a"], "_time": [8], "_diff": [-1]}))
        assert bulk.times == (7, 9)
        assert load(place.client, place.writer, bulk, place.commit, new_upper=20) == 20
    with place.controller.reader("flights", purpose="test") as reader:
        assert counted(reader.snapshot(7).to_table()) == Counter({(1, "a"): 2})
        assert counted(reader.snapshot(19).to_table()) == Counter({(1, "a"): 1, (2, None): 1})


def test_what_does_not_fit_is_refused_and_nothing_is_left() -> None:
    place = Place()
    place.writer.append(None, 0, 50)
    with place.bulk() as bulk:
        bulk.add(rows(0))
        with pytest.raises(BadInput, match="some don't"):
            bulk.add([{"id": 1, "name": "a", "_time": 7}])
        with pytest.raises(BadInput, match="failed while it added updates"):
            load(place.client, place.writer, bulk, place.commit)
    with place.bulk() as bulk:
        bulk.add([{"id": 1, "name": "a", "_time": 49}])
        with pytest.raises(BadInput, match="complete up to 50: rows can't be added at 49"):
            load(place.client, place.writer, bulk, place.commit)
    with place.bulk() as bulk:
        bulk.add(rows(0))
        with pytest.raises(BadInput, match="complete up to 50: rows can't be added at 49"):
            load(place.client, place.writer, bulk, place.commit, at=49)
        with pytest.raises(BadInput, match="new upper 60 is not above"):
            load(place.client, place.writer, bulk, place.commit, at=60, new_upper=60)
        with pytest.raises(BadInput, match=r"expected times in \[50, 60\)"):
            bulk.prepare(place.writer.position(), 60, time=60)
    assert place.writer.upper() == 50
    assert place.blobs() == set()


def test_what_is_uploaded_serves_the_next_try_where_others_wrote_below_its_time() -> None:
    place, other = Place(), Place.other
    writer = other(place)
    with place.bulk() as bulk:
        bulk.add(rows(0))
        prepared = bulk.prepare(place.writer.position(), 101, time=100)
        uploaded = place.blobs()
        assert len(uploaded) == SPEC.shards
        writer.append([{"id": -1, "name": "other"}], 0, 60)
        with pytest.raises(UpperMismatch):
            place.client.multi_write(prepared.steps)
        again = bulk.prepare(place.writer.position(), 101, time=100)
        assert place.blobs() == uploaded
        place.client.multi_write(again.steps)
    assert place.blobs() == uploaded
    assert contents(place.client) == expected(0) + Counter({(-1, "other"): 1})
    assert writer.upper() == 101


def test_who_writes_past_the_time_makes_it_a_later_one() -> None:
    place = Place()
    writer, tries = place.other(), []

    def commit(steps: Callable[[], Sequence[Prepared]]) -> None:
        ready = steps()
        tries.append(place.blobs())
        if len(tries) <= 2:
            upper = writer.upper()
            writer.append(None, upper, max(upper, place.client.clock.wall_ms()) + 1000 * len(tries))
        place.client.multi_write(ready)

    with place.bulk() as bulk:
        bulk.add(rows(0))
        reached = load(place.client, place.writer, bulk, commit)
    assert len(tries) == 3
    # What was uploaded for a time that had passed is gone.
    assert [len(each) for each in tries] == [SPEC.shards] * 3
    assert place.blobs() == tries[-1]
    assert writer.upper() == reached
    assert contents(place.client) == expected(0)


@pytest.mark.parametrize("timed", [True, False])
def test_rows_that_were_gathered_before_a_handover_go_to_the_new_rendition(timed: bool) -> None:
    place = Place()
    place.writer.append(rows(-10, 10), 0, 10)
    with place.bulk() as bulk:
        gathered = rows(0)
        if timed:
            gathered = gathered.append_column("_time", pa.array([10_000_000] * ROWS, pa.uint64()))
        bulk.add(gathered)
        made = place.controller.renditions.create("flights", shards=2)
        place.controller.hydrate("flights", made.id)
        place.controller.renditions.hand_over("flights", made.id)
        bulk.add([{"id": ROWS, "name": f"name {ROWS}", **({"_time": 10_000_001} if timed else {})}])
        load(place.client, place.writer, bulk, place.commit)
    assert contents(place.client) == expected(-10, ROWS + 11)
    assert len(place.controller.describe("flights").holding.shards) == 2


def test_a_job_that_is_its_effects_is_recorded_once() -> None:
    place = Place()
    theirs = StorageController(place.stores.open())
    calls = []

    def effects(of: CollectionWriter) -> Sequence[Prepared]:
        calls.append(of)
        if of is place.writer and len(calls) == 1:
            # Just before ours is committed somebody else does the same.
            record(theirs, place.other(), "theirs")
        position = of.position()
        return of.prepare([{"id": 1, "name": "a"}], position, position.upper + 1).steps

    def record(controller: StorageController, writer: CollectionWriter, who: str) -> bool:
        spec, result = {"file": "x"}, {"who": who}
        job, ours = controller.record_job(
            "c1", "write", "slot", spec=spec, result=result, effects=lambda: effects(writer)
        )
        assert job.result == {"who": "theirs"}
        return ours

    assert record(place.controller, place.writer, "ours") is False
    assert contents(place.client) == Counter({(1, "a"): 1})
    assert place.controller.jobs("c1")[0].result == {"who": "theirs"}


_BOUNDED = """
import json, resource, sys
from pathlib import Path
import pyarrow as pa
from holdfast.persist import PersistClient, PersistConfig, Schema
from holdfast.collections import CollectionSpec, StorageController
from holdfast.tables.loading import load

def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

schema = Schema.of(key={"id": "int64"}, value={"text": "string"})
texts = [f"{each:08x}" * 150 for each in range(997)]
config = PersistConfig(maintenance="off", builder_threads=False)
with PersistClient.open(Path(sys.argv[1]), config=config) as client:
    controller = StorageController(client)
    controller.create_collection(CollectionSpec("c", "wide", schema, shards=2))
    writer = controller.writer("wide", purpose="test")
    writer.append([{"id": -1, "text": "x"}], 0, 1)
    given = 0
    with writer.bulk(memory_bytes=32 << 20) as bulk:
        before = None
        for first in range(0, 200_000, 2000):
            ids = [(each * 7919) % 200_000 for each in range(first, first + 2000)]
            piece = pa.RecordBatch.from_pydict({"id": ids, "text": [texts[each % 997] for each in ids]})
            before = before or resident()
            given += piece.nbytes
            bulk.add(piece)
        load(client, writer, bulk, lambda steps: client.multi_write(steps()))
    told = {"given": given, "grown": resident() - before, "stored": controller.stored("wide").rows}
    print(json.dumps(told))
"""


@pytest.mark.long
def test_memory_is_bounded_however_many_rows_there_are(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BOUNDED, str(tmp_path)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    print(told)
    assert told["stored"] == 200_001
    assert told["given"] > 240_000_000
    assert told["grown"] < 120_000_000, told
