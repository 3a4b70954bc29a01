"""The log in an object store after its store lost objects or went back in time. No client guesses."""

from collections.abc import Callable
from typing import Any

import pytest

from conformance.objectstore import Bucket, MemoryObjects
from conformance.test_s3_log import EVERY, NoWait, append, once, opened
from holdfast.errors import CorruptBlob, Determinate, HoldfastError, Indeterminate, LogRegressed
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.admin.recover import Recovery
from holdfast.persist.admin.verify import of_store, verify
from holdfast.persist.state.divergence import markers_of, why_keep
from holdfast.persist.stores import Entry, Head, Location, MemoryBlob, Put
from holdfast.persist.stores.log_codec import FLOOR_NAME, object_name
from holdfast.persist.stores.s3_log import S3LogConsensus
from unit.persist.open_stores import OTHER, SCHEMA, SHARD, contents, rows

LONG = 1000
"""Number of objects, too few for a checkpoint."""


def long_log(bucket: Bucket, **options: Any) -> S3LogConsensus:
    return S3LogConsensus(MemoryObjects(bucket), clock=NoWait(), checkpoint_every=LONG, **options)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def a(bucket: Bucket) -> S3LogConsensus:
    store = long_log(bucket)
    append(store, "a", 8)
    return store


def put(store: S3LogConsensus, key: str, seqno: int) -> bool:
    return store.compare_and_set([Put(key, seqno, f"{key}{seqno}".encode())])


def test_a_reader_whose_newest_object_is_gone_ends(bucket: Bucket, a: S3LogConsensus) -> None:
    idle = long_log(bucket)
    del bucket.objects[object_name(8)]
    for store in (a, idle):
        for call in (
            lambda s=store: s.heads(["a"]),
            lambda s=store: s.scan("a", 1, 10),
            lambda s=store: put(s, "a", 9),
            lambda s=store: s.truncate("a", 3),
            lambda s=store: s.list_keys(),
            lambda s=store: s.check_integrity(),
        ):
            with pytest.raises(LogRegressed, match="this client saw object 8, and the store now has nothing"):
                call()
    assert bucket.names("log/") == [object_name(p) for p in range(1, 8)], "nothing was put"
    # A new process goes on with what is left.
    fresh = long_log(bucket)
    assert fresh.heads(["a"]) == {"a": Head(7, b"a7")}
    assert put(fresh, "a", 8)


def test_a_reader_whose_newest_object_is_another_one_ends(bucket: Bucket, a: S3LogConsensus) -> None:
    del bucket.objects[object_name(8)]
    append(long_log(bucket), "b", 3)
    with pytest.raises(LogRegressed, match="this client saw object 8, and the store now has another object"):
        a.heads(["a"])
    with pytest.raises(LogRegressed):
        put(a, "a", 9)


def test_the_same_object_under_another_tag_is_the_same(bucket: Bucket, a: S3LogConsensus) -> None:
    """A bucket that was copied, or encrypted anew, is as it was."""
    for name, found in list(bucket.objects.items()):
        bucket.put(name, found.data)
    assert a.heads(["a"])["a"].seqno == 8
    assert put(a, "a", 9)


@pytest.mark.parametrize("lost", [[8], [7, 8], [5, 6, 7, 8]], ids=str)
def test_an_append_over_a_gap_is_not_acknowledged(bucket: Bucket, a: S3LogConsensus, lost: list[int]) -> None:
    """Its outcome is unknown: it is of the log if the lost objects come back. Nothing is deleted."""
    held = {position: bucket.objects.pop(object_name(position)) for position in lost}
    with pytest.raises(Indeterminate, match="this client saw object 8, and the store now has nothing"):
        put(a, "a", 9)
    assert object_name(9) in bucket.names()
    with pytest.raises(LogRegressed):
        put(a, "a", 9)
    with pytest.raises(LogRegressed):
        a.heads(["a"])
    with pytest.raises(CorruptBlob, match=f"{object_name(lost[0])} in memory objects is missing") as found:
        long_log(bucket, arguments="'s3://b/p?a=1&b=2'")
    assert found.value.hint.endswith("run: holdfast persist recover 's3://b/p?a=1&b=2'")
    bucket.objects.update({object_name(position): found for position, found in held.items()})
    assert long_log(bucket).heads(["a"]) == {"a": Head(9, b"a9")}


@pytest.mark.parametrize(
    ("request_", "name"),
    [("create", object_name(9)), ("get", FLOOR_NAME), ("get", object_name(8))],
    ids=["before the put", "after the put", "before the look"],
)
def test_an_object_that_vanishes_while_the_next_is_put(
    bucket: Bucket, a: S3LogConsensus, request_: str, name: str
) -> None:
    objects = MemoryObjects(bucket)
    writer = S3LogConsensus(objects, clock=NoWait(), checkpoint_every=LONG)
    objects.before = once(request_, name, lambda: bucket.objects.pop(object_name(8)))
    with pytest.raises(Indeterminate):
        put(writer, "a", 9)
    with pytest.raises(LogRegressed):
        writer.heads(["a"])


def test_own_objects_over_a_gap_prove_nothing(bucket: Bucket, a: S3LogConsensus) -> None:
    """Another thread puts the next object, and a third reads, while the first has not looked yet."""
    objects = MemoryObjects(bucket)
    writer = S3LogConsensus(objects, clock=NoWait(), checkpoint_every=LONG)
    del bucket.objects[object_name(8)]
    results: list[HoldfastError] = []

    def others() -> None:
        for call in (lambda: put(writer, "b", 1), lambda: writer.heads(["a"])):
            with pytest.raises(HoldfastError) as found:
                call()
            results.append(found.value)

    objects.before = once("get", FLOOR_NAME, others)
    with pytest.raises(Indeterminate):
        put(writer, "a", 9)
    assert [type(result) for result in results] == [Indeterminate, LogRegressed]


def test_an_object_that_another_process_put_over_a_gap_proves_nothing(
    bucket: Bucket, a: S3LogConsensus
) -> None:
    other, third = long_log(bucket), long_log(bucket)
    del bucket.objects[object_name(8)]
    with pytest.raises(Indeterminate):
        put(other, "b", 1)
    with pytest.raises(LogRegressed):
        a.heads(["b"])
    with pytest.raises(LogRegressed):
        put(third, "b", 1)


def test_a_put_of_unknown_outcome_over_a_gap_stays_unknown(bucket: Bucket, a: S3LogConsensus) -> None:
    class Lossy(MemoryObjects):
        def create(self, name: str, data: bytes) -> str:
            super().create(name, data)
            raise Indeterminate("no answer")

    objects = Lossy(bucket)
    writer = S3LogConsensus(objects, clock=NoWait(), checkpoint_every=LONG)
    del bucket.objects[object_name(8)]
    with pytest.raises(Indeterminate):
        put(writer, "a", 9)
    with pytest.raises(LogRegressed):
        writer.heads(["a"])


def test_a_log_with_a_gap_is_not_opened(bucket: Bucket, a: S3LogConsensus) -> None:
    del bucket.objects[object_name(4)]
    for read_only in (False, True):
        with pytest.raises(CorruptBlob, match=f"{object_name(4)} .* is missing: the log goes on to 8"):
            long_log(bucket, read_only=read_only)
    assert a.heads(["a"])["a"].seqno == 8
    with pytest.raises(CorruptBlob, match="is missing"):
        a.check_integrity()
    with pytest.raises(CorruptBlob, match="is missing"):
        a.heads(["a"])


def test_an_append_while_the_log_is_opened_is_no_gap(bucket: Bucket, a: S3LogConsensus) -> None:
    objects = MemoryObjects(bucket)
    objects.before = once("list", "log/", lambda: append(a, "a", 3))
    store = S3LogConsensus(objects, clock=NoWait(), checkpoint_every=LONG)
    assert store.heads(["a"])["a"].seqno == 11


def test_a_truncation_while_the_log_is_opened_is_no_gap(bucket: Bucket) -> None:
    """Objects that were listed before, or not any more, are below the floor by then."""
    writer = opened(MemoryObjects(bucket))
    append(writer, "a", EVERY - 1)
    for request in ("list log/", f"get {FLOOR_NAME}", f"get {object_name(EVERY - 1)}"):
        objects = MemoryObjects(bucket)
        objects.before = once(*request.split(), act=lambda: append(writer, "a", 3 * EVERY))
        assert opened(objects).heads(["a"]) == writer.heads(["a"])


def test_a_process_that_was_idle_lists_what_follows_its_end(bucket: Bucket, a: S3LogConsensus) -> None:
    """It is behind, and the object that it asks for next is the one that was lost."""
    clock = NoWait()
    objects = MemoryObjects(bucket)
    idle = S3LogConsensus(objects, clock=clock, checkpoint_every=LONG)
    append(a, "a", 3)
    del bucket.objects[object_name(9)]
    clock.sleep(60)
    with pytest.raises(Indeterminate):
        put(idle, "b", 1)
    with pytest.raises(CorruptBlob, match=f"{object_name(10)} in memory objects"):
        idle.heads(["a"])
    with pytest.raises(CorruptBlob):
        idle.heads(["a"])


def test_a_process_that_looks_all_the_time_lists_nothing(bucket: Bucket, a: S3LogConsensus) -> None:
    clock = NoWait()
    objects = MemoryObjects(bucket)
    store = S3LogConsensus(objects, clock=clock, checkpoint_every=LONG)
    objects.requests.clear()
    for seqno in range(1, 20):
        store.heads(["b"])
        assert put(store, "b", seqno)
        clock.sleep(9)
    assert {request.split()[0] for request in objects.requests} == {"get", "create"}


def test_what_a_look_and_an_append_cost(bucket: Bucket, a: S3LogConsensus) -> None:
    objects = MemoryObjects(bucket)
    store = S3LogConsensus(objects, clock=NoWait(), checkpoint_every=LONG)
    objects.requests.clear()
    store.heads(["a"])
    assert objects.requests == [f"get {object_name(9)}", f"get {FLOOR_NAME}", f"get {object_name(8)}"]
    objects.requests.clear()
    assert put(store, "a", 9)
    assert objects.requests == [f"create {object_name(9)}", f"get {FLOOR_NAME}", f"get {object_name(8)}"]


@pytest.mark.parametrize("lost", range(2, EVERY + 1))
def test_a_gap_below_the_newest_checkpoint_is_found_by_who_is_behind(bucket: Bucket, lost: int) -> None:
    writer = opened(MemoryObjects(bucket))
    append(writer, "a", lost - 1)
    reader, appender = opened(MemoryObjects(bucket)), opened(MemoryObjects(bucket))
    append(writer, "a", EVERY + 2 - lost)
    del bucket.objects[object_name(lost)]
    with pytest.raises(CorruptBlob, match=f"{object_name(lost)} .* is missing: the log goes on to {EVERY}"):
        reader.heads(["a"])
    if lost < EVERY:
        with pytest.raises(Determinate, match="or lost what was there"):
            put(appender, "b", 1)
        assert appender.heads(["a", "b"]) == {"a": Head(EVERY + 1, b"a5")}
    else:
        with pytest.raises(Indeterminate, match="now has another object"):
            put(appender, "b", 1)


def test_a_floor_that_went_back_ends_the_process(bucket: Bucket) -> None:
    writer = opened(MemoryObjects(bucket))
    append(writer, "a", 3 * EVERY)
    copy = bucket.objects[FLOOR_NAME]
    append(writer, "a", 2 * EVERY)
    bucket.objects[FLOOR_NAME] = copy
    with pytest.raises(LogRegressed, match="floor in memory objects"):
        writer.heads(["a"])
    with pytest.raises(LogRegressed):
        put(writer, "a", 5 * EVERY + 1)


def test_a_process_that_slept_while_another_history_wrote_checkpoints_ends(bucket: Bucket) -> None:
    asleep = opened(MemoryObjects(bucket))
    append(asleep, "a", EVERY + 1)
    copy = dict(bucket.objects)
    append(asleep, "a", 1)
    bucket.objects = copy
    append(opened(MemoryObjects(bucket)), "b", 5 * EVERY)
    assert object_name(EVERY + 2) not in bucket.names()
    with pytest.raises(LogRegressed, match="now has another object"):
        asleep.heads(["a"])


def test_any_older_state_at_any_request_ends_or_loses_nothing(bucket: Bucket) -> None:
    """A has 12 acknowledged; the bucket returns to any earlier state before any request of A's next calls."""
    states = []
    writer = opened(MemoryObjects(bucket))
    for _ in range(3 * EVERY):
        states.append(dict(bucket.objects))
        append(writer, "a", 1)
    whole = dict(bucket.objects)
    for past, state in enumerate(states):
        for number in range(8):
            bucket.objects = dict(whole)
            objects = MemoryObjects(bucket)
            store = opened(objects)
            objects.requests.clear()

            def restore(*_: str, of: MemoryObjects = objects, at: int = number, to: Any = state) -> None:
                if len(of.requests) == at + 1:
                    bucket.objects = dict(to)

            objects.before = restore
            acknowledged = 3 * EVERY
            try:
                for _ in range(2):
                    acknowledged += put(store, "a", acknowledged + 1)
                    store.heads(["a"])
            except (LogRegressed, Indeterminate, CorruptBlob):
                pass
            else:
                raise AssertionError(f"{past}, {number}: nobody noticed")
            with pytest.raises((LogRegressed, CorruptBlob)):
                store.heads(["a"])


def test_an_attempt_that_lands_late_does_not_bring_a_lost_object_back(
    bucket: Bucket, a: S3LogConsensus
) -> None:
    late: list[Callable[[], object]] = []

    class Slow(MemoryObjects):
        """The first attempt to put an object lands when `late` is called."""

        def create(self, name: str, data: bytes) -> str:
            if not late:
                late.append(lambda: super(Slow, self).create(name, data))
                raise Indeterminate("no answer")
            return super().create(name, data)

    copy = dict(bucket.objects)
    writer = S3LogConsensus(Slow(bucket), clock=NoWait(), checkpoint_every=LONG)
    assert put(writer, "a", 9)
    bucket.objects = copy
    del bucket.objects[object_name(8)]
    late[0]()
    assert object_name(9) in bucket.names()
    with pytest.raises(LogRegressed, match="this client saw object 9, and the store now has another object"):
        writer.heads(["a"])
    with pytest.raises(LogRegressed):
        put(writer, "a", 10)


@pytest.mark.parametrize("kept", [2 * EVERY - 1, 2 * EVERY + 1], ids=["older floor", "same floor"])
@pytest.mark.parametrize("request_", ["create checkpoint/", "replace floor", "list log/", "list checkpoint/"])
def test_a_checkpoint_deletes_nothing_of_a_restored_log(bucket: Bucket, request_: str, kept: int) -> None:
    """The bucket returns to what it had at `kept` while the checkpoint of `3 * EVERY` is on its way."""
    objects = MemoryObjects(bucket)
    store = opened(objects)
    append(store, "a", kept)
    copy = dict(bucket.objects)
    append(store, "a", 3 * EVERY - 1 - kept)

    def before(request: str, name: str) -> None:
        if f"{request} {name}".startswith(request_):
            objects.before = lambda *_: None
            bucket.objects = dict(copy)

    objects.before = before
    assert put(store, "a", 3 * EVERY)
    assert copy.keys() <= bucket.objects.keys()
    recovered = S3LogConsensus(MemoryObjects(bucket), for_recovery=True)
    assert recovered.heads(["a"]) == {"a": Head(kept, b"a%d" % kept)}


# With a client, the history that was lost, and recovery.


class Place:
    """A location whose log is in a bucket."""

    def __init__(self) -> None:
        self.blob, self.bucket = MemoryBlob(), Bucket()

    def open(self, **settings: Any) -> PersistClient:
        config = PersistConfig(
            **{"maintenance": "off", "retry_deadline_s": 0.5, "debug_validate": True, **settings}
        )
        return PersistClient(Location.of(self.blob, long_log(self.bucket)), config=config)

    def recovery(self, **options: Any) -> Recovery:
        return Recovery(self.blob, long_log(self.bucket, for_recovery=True), **options)


def write(client: PersistClient, *times: int, shard: str = SHARD, value: str = "x") -> None:
    with client.writer(shard, SCHEMA, purpose="t") as writer:
        for time in times:
            writer.compare_and_append(rows(time, value=value), time, time + 1)


def read(client: PersistClient, shard: str = SHARD) -> list[tuple[int, str]]:
    upper = client.recent_upper(shard)
    return sorted(contents(client.reader(shard, purpose="r").snapshot(upper - 1).to_table()))


def expected(upper: int, value: str = "x") -> list[tuple[int, str]]:
    return [(time, value) for time in range(upper)]


@pytest.mark.parametrize("first", ["a read", "an append"])
def test_all_handles_of_a_client_end_and_its_history_is_kept(first: str) -> None:
    place = Place()
    a = place.open()
    write(a, 0, shard=OTHER)
    writer = a.writer(SHARD, SCHEMA, purpose="a")
    for time in range(8):
        writer.compare_and_append(rows(time), time, time + 1)
    copy = dict(place.bucket.objects)
    for time in (8, 9):
        writer.compare_and_append(rows(time, value="a"), time, time + 1)
    place.bucket.objects = copy
    if first == "a read":
        with pytest.raises(LogRegressed):
            a.recent_upper(OTHER)
    else:
        with pytest.raises(Indeterminate):
            writer.compare_and_append(rows(10, value="a"), 10, 11)
    calls: list[Callable[[], object]] = [
        lambda: a.recent_upper(SHARD),
        lambda: a.recent_upper(OTHER),
        lambda: a.reader(OTHER, purpose="r"),
        lambda: write(a, 1, shard=OTHER),
        lambda: a.maintain(SHARD),
        a.shards,
    ]
    for call in calls:
        with pytest.raises(LogRegressed):
            call()
    assert {marker.shard_id for marker in markers_of(place.blob, SHARD)} == {SHARD}
    if first == "a read":
        b = place.open()
        assert read(b) == expected(8)
        write(b, 8, value="b")
        assert "went back to an older state" in why_keep(b.session.existing(SHARD))
        assert not why_keep(b.session.existing(OTHER))
        with pytest.raises(LogRegressed):
            read(a)


def test_a_gap_is_recovered_up_to_it_and_said() -> None:
    place = Place()
    a = place.open()
    write(a, 0, 1, 2, shard=OTHER)
    write(a, *range(8))
    names = place.bucket.names("log/")
    assert len(names) == 12  # the id of the location, 3 and 8
    del place.bucket.objects[names[8]]
    with pytest.raises(CorruptBlob):
        place.open()
    before = dict(place.bucket.objects)
    recovery = place.recovery()
    plan = recovery.plan
    assert (plan.healthy, plan.complete) == (False, False)
    assert plan.lost.endswith(f"; 3 objects up to {names[-1]} can't be used")
    shards = {shard.shard_id: shard for shard in plan.shards}
    assert (shards[SHARD].upper, shards[SHARD].beyond, shards[SHARD].seen) == (4, 8, 8)
    assert (shards[OTHER].upper, shards[OTHER].beyond) == (3, 0)
    assert place.bucket.objects == before, "a look writes nothing"
    recovery.run()
    b = place.open()
    assert read(b) == expected(4)
    assert read(b, OTHER) == expected(3)
    write(b, 4, 5, value="b")
    assert read(place.open()) == [*expected(4), (4, "b"), (5, "b")]
    assert verify(b, SHARD).findings == ()
    assert of_store(b) == ()


@pytest.mark.parametrize("what", ["floor", "checkpoint", "damaged floor", "damaged object"])
def test_a_log_that_cannot_be_opened_is_recovered(what: str) -> None:
    place = Place()
    a = place.open(maintenance="inline", rollup_every=3)
    write(a, *range(12))
    log = S3LogConsensus(MemoryObjects(place.bucket), clock=NoWait(), checkpoint_every=2)
    append(log, "other", 2)
    assert place.bucket.names("checkpoint/")
    append(log, "other", 1)
    if what == "floor":
        del place.bucket.objects[FLOOR_NAME]
    elif what == "checkpoint":
        del place.bucket.objects[place.bucket.names("checkpoint/")[0]]
    elif what == "damaged floor":
        place.bucket.put(FLOOR_NAME, b"nonsense")
    else:
        place.bucket.put(place.bucket.names("log/")[-1], b"nonsense")
    with pytest.raises(CorruptBlob):
        place.open()
    recovery = place.recovery()
    assert not recovery.plan.complete
    assert recovery.plan.lost
    recovery.run()
    b = place.open()
    upper = b.recent_upper(SHARD)
    assert upper >= 9
    assert read(b) == expected(upper)
    write(b, upper)
    assert of_store(place.open()) == ()


def test_the_store_of_a_recovery_takes_no_appends(bucket: Bucket, a: S3LogConsensus) -> None:
    del bucket.objects[object_name(4)]
    store = long_log(bucket, for_recovery=True)
    assert store.scan("a", 1, 10) == [Entry(n, f"a{n}".encode()) for n in range(1, 4)]
    with pytest.raises(HoldfastError, match="for recovery only"):
        put(store, "a", 4)
    assert store.restart("a", 100, b"again")
    assert put(store, "a", 101)
    assert long_log(bucket).scan("a", 1, 10) == [Entry(100, b"again"), Entry(101, b"a101")]
