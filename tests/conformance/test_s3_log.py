"""The log in an object store, in every interleaving that could give a wrong answer.

A hook before a request lets another client run there, so each race happens every time.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from conformance.objectstore import Bucket, MemoryObjects
from holdfast.errors import (
    CorruptBlob,
    Determinate,
    Indeterminate,
    NotWritable,
    StoreUnreachable,
    VersionTooNew,
)
from holdfast.persist import Clock
from holdfast.persist.looks import one_look
from holdfast.persist.stores import Entry, Expect, Head, Put
from holdfast.persist.stores.log_codec import FLOOR_NAME, object_name
from holdfast.persist.stores.log_state import RECENT
from holdfast.persist.stores.s3_log import S3LogConsensus
from testbed.faults import ProcessDeath

EVERY = 4


class NoWait(Clock):
    """Waiting takes no time; only the time that passes while we wait does."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def monotonic(self) -> float:
        return self.slept_s

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


def opened(objects: MemoryObjects, *, read_only: bool = False) -> S3LogConsensus:
    return S3LogConsensus(objects, read_only=read_only, clock=NoWait(), checkpoint_every=EVERY)


def append(store: S3LogConsensus, key: str, count: int) -> None:
    """Append `count` entries, each after the newest."""
    for _ in range(count):
        head = store.heads([key]).get(key, Head(0, b"")).seqno
        assert store.compare_and_set([Put(key, head + 1, f"{key}{head + 1}".encode())])


def once(request: str, name: str, act: Callable[[], None]) -> Callable[[str, str], None]:
    """A hook that runs `act` before the first request of a kind to an object."""
    done = False

    def hook(asked: str, of: str) -> None:
        nonlocal done
        if not done and (asked, of) == (request, name):
            done = True
            act()

    return hook


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def other(bucket: Bucket) -> S3LogConsensus:
    """Another process, with two entries of its own key at positions 1 and 2."""
    store = opened(MemoryObjects(bucket))
    append(store, "b", 2)
    return store


def test_objects_below_the_floor_go_and_an_open_is_short(bucket: Bucket, other: S3LogConsensus) -> None:
    append(other, "b", 38)
    fresh = MemoryObjects(bucket)
    store = opened(fresh)

    assert bucket.names("log/") == [object_name(position) for position in range(36, 41)]
    assert len(bucket.names("checkpoint/")) == 1
    assert [entry.seqno for entry in store.scan("b", 0, 100)] == list(range(1, 41))
    # An open asks for 16 objects at once, because it can't know where the log ends.
    assert len(fresh.requests) < 10 + 16


@pytest.mark.parametrize(
    ("request_", "name"), [("get", object_name(3)), ("get", FLOOR_NAME)], ids=["before the end", "after it"]
)
def test_a_reader_that_finds_no_next_object_looks_at_the_floor_after_it(
    bucket: Bucket, other: S3LogConsensus, request_: str, name: str
) -> None:
    """The log moves on and loses what the reader asks for next, before or after it asks."""
    objects = MemoryObjects(bucket)
    reader = opened(objects)
    objects.before = once(request_, name, lambda: append(other, "b", 20))

    assert reader.heads(["b"])["b"].seqno == 22
    assert object_name(3) not in bucket.names()


def test_a_writer_that_slept_over_a_truncation_has_not_won(bucket: Bucket, other: S3LogConsensus) -> None:
    """Its object lands where the real one was deleted: it is in nobody's log, and others are not misled."""
    objects, late = MemoryObjects(bucket), MemoryObjects(bucket)
    writer, reader = opened(objects), opened(late)
    objects.before = once("create", object_name(3), lambda: append(other, "b", 20))

    with pytest.raises(Determinate, match="was put at 3 is not part of"):
        writer.compare_and_set([Put("a", 1, b"asleep")], [Expect("b", 2)])

    assert object_name(3) in bucket.names(), "the sleeper has put its object"
    for store in (writer, reader, other, opened(MemoryObjects(bucket))):
        assert store.heads(["a", "b"]).keys() == {"b"}
        assert store.heads(["b"])["b"].seqno == 22
    append(other, "b", 8)
    assert object_name(3) not in bucket.names(), "what lies below the floor goes with the next truncation"
    assert writer.compare_and_set([Put("a", 1, b"awake")], [Expect("b", 30)])


def test_a_look_that_meets_the_object_of_a_sleeper_reads_the_log_again(
    bucket: Bucket, other: S3LogConsensus
) -> None:
    """The writer never learns that its object is in nobody's log. Its block has a read from before."""
    objects = MemoryObjects(bucket)
    writer = opened(objects)

    def meanwhile() -> None:
        append(other, "b", 20)
        objects.before = once("get", FLOOR_NAME, fail)

    def fail() -> None:
        raise Determinate("the service is down")

    objects.before = once("create", object_name(3), meanwhile)
    with one_look():
        assert writer.heads(["b"])["b"].seqno == 2
        with pytest.raises(Indeterminate):
            writer.compare_and_set([Put("a", 1, b"asleep")], [Expect("b", 2)])
        made = len(objects.requests)

        def bound(request: str, name: str) -> None:
            assert len(objects.requests) < made + 100, f"loops at {request} {name}"

        objects.before = bound
        assert {key: head.seqno for key, head in writer.heads(["a", "b"]).items()} == {"b": 22}


def test_a_state_that_others_read_on_is_not_replaced_by_an_older_one(
    bucket: Bucket, other: S3LogConsensus
) -> None:
    store = opened(MemoryObjects(bucket))
    turns = store._turns  # the race is between two statements
    state, opened_by, confirmed = turns.state.copy(), turns.opened_by, turns.confirmed
    append(other, "b", 1)
    assert store.heads(["b"])["b"].seqno == 3
    turns.replace(state, opened_by, confirmed=confirmed)
    assert turns.state.position == turns.confirmed == 3
    turns.replace(state, opened_by, confirmed=turns.confirmed)
    assert turns.state.position == turns.confirmed == 2


def test_a_reader_on_the_branch_of_a_sleeper_leaves_it(bucket: Bucket, other: S3LogConsensus) -> None:
    """It reads the stray object, whose predecessor it has, and then one whose predecessor is another."""
    objects, late = MemoryObjects(bucket), MemoryObjects(bucket)
    writer, reader = opened(objects), opened(late)

    def move_on() -> None:
        append(other, "b", 6)  # the floor is at 4

    objects.before = once("create", object_name(3), move_on)
    with pytest.raises(Determinate):
        writer.compare_and_set([Put("a", 1, b"asleep")])
    assert bucket.names("log/")[:2] == [object_name(3), object_name(4)]

    assert reader.heads(["a", "b"]) == {"b": Head(8, b"b8")}
    assert f"get {object_name(3)}" in late.requests


def test_a_put_that_was_truncated_before_its_confirmation_is_settled_by_its_token(
    bucket: Bucket, other: S3LogConsensus
) -> None:
    objects = MemoryObjects(bucket)
    writer = opened(objects)

    def before(request: str, name: str) -> None:
        if f"create {object_name(3)}" in objects.requests and name == FLOOR_NAME:
            objects.before = lambda *_: None
            append(other, "b", 20)

    objects.before = before

    assert writer.compare_and_set([Put("a", 1, b"x")]) is True
    assert object_name(3) not in bucket.names()
    assert writer.heads(["a"]) == {"a": Head(1, b"x")}


def test_a_put_of_which_no_token_is_left_is_indeterminate(bucket: Bucket, other: S3LogConsensus) -> None:
    objects = MemoryObjects(bucket)
    writer = opened(objects)
    objects.before = once("create", object_name(3), lambda: append(other, "b", RECENT + 2 * EVERY))

    with pytest.raises(Indeterminate, match="was truncated beyond it before"):
        writer.compare_and_set([Put("a", 1, b"x")])

    assert writer.heads(["a"]) == {}


def test_conditions_hold_at_the_commit_point(bucket: Bucket, other: S3LogConsensus) -> None:
    """The lock moves between the check and the put."""
    objects = MemoryObjects(bucket)
    writer = opened(objects)
    objects.before = once("create", object_name(3), lambda: append(other, "b", 1))

    assert writer.compare_and_set([Put("a", 1, b"x")], [Expect("b", 2)]) is False
    assert writer.compare_and_set([Put("a", 1, b"x")], [Expect("b", 3)]) is True


def test_a_writer_that_lost_a_race_on_other_keys_still_wins(bucket: Bucket, other: S3LogConsensus) -> None:
    objects = MemoryObjects(bucket)
    writer = opened(objects)
    objects.before = once("create", object_name(3), lambda: append(other, "b", 1))

    assert writer.compare_and_set([Put("a", 1, b"x")]) is True
    assert [request for request in objects.requests if request.startswith("create log")] == [
        f"create {object_name(3)}",
        f"create {object_name(4)}",
    ]


class Unsure(MemoryObjects):
    """Objects whose first answers to a create get lost: "before" it was done, or "after"."""

    def __init__(self, bucket: Bucket, losses: list[str]) -> None:
        super().__init__(bucket)
        self.losses = losses

    def create(self, name: str, data: bytes) -> str:
        loss = self.losses.pop(0) if self.losses and name.startswith("log/") else ""
        created = "" if loss == "before" else super().create(name, data)
        if loss:
            raise Indeterminate("no answer")
        return created


@pytest.mark.parametrize("losses", [["before"], ["after"], ["after", "after"], ["before", "after"]], ids=str)
def test_a_put_of_unknown_outcome_is_sent_again_and_known_by_its_token(
    bucket: Bucket, losses: list[str]
) -> None:
    store = opened(Unsure(bucket, losses))

    assert store.compare_and_set([Put("a", 1, b"x"), Put("b", 1, b"y")]) is True

    assert opened(MemoryObjects(bucket)).heads(["a", "b"]) == {"a": Head(1, b"x"), "b": Head(1, b"y")}
    assert bucket.names("log/") == [object_name(1)]


def test_a_put_that_stays_unknown_is_indeterminate_and_what_came_of_it_is_read(bucket: Bucket) -> None:
    store = opened(Unsure(bucket, ["before", "before", "after"]))

    with pytest.raises(Indeterminate):
        store.compare_and_set([Put("a", 1, b"x")])

    assert store.compare_and_set([Put("a", 1, b"y")]) is False
    assert store.heads(["a"]) == {"a": Head(1, b"x")}


def test_a_lost_answer_to_a_put_that_another_process_beat_is_no_success(
    bucket: Bucket, other: S3LogConsensus
) -> None:
    objects = Unsure(bucket, ["before"])
    store = opened(objects)
    objects.before = once("create", object_name(3), lambda: append(other, "a", 1))

    assert store.compare_and_set([Put("a", 1, b"mine")]) is False
    assert store.heads(["a"]) == {"a": Head(1, b"a1")}


def test_threads_share_an_object_and_each_gets_its_own_answer(bucket: Bucket) -> None:
    objects = MemoryObjects(bucket)
    store = opened(objects)
    arrived = threading.Semaphore(0)
    go = threading.Event()

    def before(request: str, name: str) -> None:
        if (request, name) == ("create", object_name(1)):
            arrived.release()
            assert go.wait(60)

    objects.before = before
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(store.compare_and_set, [Put("first", 1, b"x")])
        assert arrived.acquire(timeout=60)
        others = [pool.submit(store.compare_and_set, [Put(f"k{n // 2}", 1, b"%d" % n)]) for n in range(8)]
        while len(store._turns._waiting) < 8:
            threading.Event().wait(0.001)  # for those that come to wait for the first
        go.set()
        answers = [future.result(60) for future in others]
        assert first.result(60) is True

    assert sorted(answers) == [False] * 4 + [True] * 4
    assert [answers[n] + answers[n + 1] for n in range(0, 8, 2)] == [1, 1, 1, 1]
    assert bucket.names("log/") == [object_name(1), object_name(2)]
    for number in range(8):
        found = store.heads([f"k{number // 2}"])[f"k{number // 2}"]
        assert answers[int(found.data)] is True


def test_a_checkpoint_that_another_process_overtook_is_dropped(bucket: Bucket) -> None:
    objects = MemoryObjects(bucket)
    slow, fast = opened(objects), opened(MemoryObjects(bucket))
    append(slow, "a", EVERY - 1)
    objects.before = once("replace", FLOOR_NAME, lambda: append(fast, "b", EVERY))

    append(slow, "a", 1)

    assert [name[:32] for name in bucket.names("checkpoint/")] == [f"checkpoint/{2 * EVERY:020}-"]
    assert opened(MemoryObjects(bucket)).heads(["a", "b"]) == {
        "a": Head(EVERY, b"a4"),
        "b": Head(EVERY, b"b4"),
    }


def _work(store: S3LogConsensus, acknowledged: dict[str, int]) -> None:
    for seqno in range(1, 11):
        assert store.compare_and_set([Put("a", seqno, b"%d" % seqno), Put("b", seqno, b"%d" % seqno)])
        acknowledged["head"] = seqno
        if seqno == 6:
            acknowledged["dropped"] = store.truncate("a", 4)


def test_a_death_at_any_request_loses_nothing_that_was_acknowledged() -> None:
    """Also while a checkpoint is written, the floor moved and objects deleted."""
    whole = MemoryObjects()
    _work(opened(whole), {})
    for number in range(len(whole.requests)):
        bucket = Bucket()
        dying = MemoryObjects(bucket)
        acknowledged = {"head": 0}

        def die(*_: str, of: MemoryObjects = dying, at: int = number) -> None:
            if len(of.requests) > at:
                raise ProcessDeath

        dying.before = die
        with pytest.raises(ProcessDeath):
            _work(opened(dying), acknowledged)

        store = opened(MemoryObjects(bucket))
        heads = store.heads(["a", "b"])
        assert len({entry.seqno for entry in heads.values()}) <= 1
        head = heads["b"].seqno if heads else 0
        assert acknowledged["head"] <= head <= acknowledged["head"] + 1
        assert [entry.seqno for entry in store.scan("b", 0, 100)] == list(range(1, head + 1))
        if "dropped" in acknowledged:
            assert store.scan("a", 0, 1) == [Entry(4, b"4")]
        append(store, "a", 2 * EVERY)
        assert len(bucket.names("checkpoint/")) == 1
        assert len(bucket.names("log/")) <= 2 * EVERY


def test_bytes_that_were_changed_are_told_with_their_key(bucket: Bucket, other: S3LogConsensus) -> None:
    append(other, "b", EVERY)
    names = bucket.names()
    assert {name.partition("/")[0] for name in names} == {"log", "checkpoint", "floor"}
    for name in names:
        good = bucket.objects[name].data
        # Object 4 is below the checkpoint: a newcomer doesn't read it.
        if name in [object_name(position) for position in range(1, EVERY + 1)]:
            continue
        for bad in (b"", good[:-1], good[:8], good[:20] + bytes([good[20] ^ 4]) + good[21:], b"x" + good):
            bucket.put(name, bad)
            with pytest.raises(CorruptBlob, match=f"{name} in memory objects is corrupt"):
                opened(MemoryObjects(bucket)).list_keys()
        bucket.put(name, good)
    assert opened(MemoryObjects(bucket)).list_keys() == ["b"]


def test_a_later_format_is_told(bucket: Bucket, other: S3LogConsensus) -> None:
    import google_crc32c

    body = bucket.objects[FLOOR_NAME].data[12:]
    prefix = b"HFf\n" + (2).to_bytes(2, "little") + bytes(2)
    bucket.put(FLOOR_NAME, prefix + google_crc32c.value(prefix + body).to_bytes(4, "little") + body)

    with pytest.raises(VersionTooNew, match="floor in memory objects has format version 2"):
        opened(MemoryObjects(bucket))


def test_an_object_of_another_log_or_place_is_refused(bucket: Bucket, other: S3LogConsensus) -> None:
    strange = Bucket()
    append(opened(MemoryObjects(strange)), "b", 3)

    bucket.put(object_name(3), strange.objects[object_name(3)].data)
    with pytest.raises(CorruptBlob, match="expected log"):
        other.heads(["b"])
    bucket.put(object_name(3), bucket.objects[object_name(2)].data)
    with pytest.raises(CorruptBlob, match="expected position 3"):
        other.heads(["b"])


def test_objects_without_a_floor_are_no_new_log(bucket: Bucket, other: S3LogConsensus) -> None:
    del bucket.objects[FLOOR_NAME]
    before = bucket.names()

    with pytest.raises(CorruptBlob, match="is missing: the log has objects"):
        opened(MemoryObjects(bucket))
    assert bucket.names() == before
    with pytest.raises(Indeterminate, match="was removed or replaced"):
        other.compare_and_set([Put("a", 1, b"x")])


def test_a_log_that_was_replaced_while_it_was_open_is_told(bucket: Bucket, other: S3LogConsensus) -> None:
    bucket.objects.clear()
    opened(MemoryObjects(bucket))

    with pytest.raises(Determinate, match="was removed or replaced") as caught:
        other.heads(["b"])
    assert caught.value.lasting
    with pytest.raises(Indeterminate, match="was removed or replaced"):
        other.compare_and_set([Put("b", 3, b"x")])


def test_a_store_for_reading_writes_nothing(bucket: Bucket, other: S3LogConsensus) -> None:
    objects = MemoryObjects(bucket)
    reader = opened(objects, read_only=True)
    append(other, "b", 10)

    assert reader.heads(["b"])["b"].seqno == 12
    with pytest.raises(NotWritable):
        reader.compare_and_set([Put("b", 13, b"x")])
    with pytest.raises(NotWritable):
        reader.truncate("b", 3)
    assert {request.split()[0] for request in objects.requests} == {"get", "list"}
    empty = MemoryObjects()
    with pytest.raises(StoreUnreachable, match="there is no consensus log"):
        opened(empty, read_only=True)
    assert empty.bucket.names() == []


def test_a_large_state_is_not_written_again_for_small_steps(bucket: Bucket) -> None:
    store = opened(MemoryObjects(bucket))
    assert store.compare_and_set([Put("large", 1, bytes(100_000))])
    append(store, "a", EVERY - 1)
    (first,) = bucket.names("checkpoint/")

    append(store, "a", 3 * EVERY)

    assert bucket.names("checkpoint/") == [first]
    assert store.truncate("a", 100) == 4 * EVERY - 2
    assert store.compare_and_set([Put("large", 2, b"")])
    assert store.truncate("large", 2) == 1
    append(store, "a", EVERY)
    assert bucket.names("checkpoint/") != [first]


class Heedless(MemoryObjects):
    """A service that takes no notice of a condition."""

    def __init__(self, ignored: str) -> None:
        super().__init__()
        self.ignored = ignored

    def create(self, name: str, data: bytes) -> str:
        if self.ignored == "create":
            return self.bucket.put(name, data)
        return super().create(name, data)

    def replace(self, name: str, data: bytes, tag: str) -> bool:
        if self.ignored == "replace":
            self.bucket.put(name, data)
            return True
        return super().replace(name, data, tag)


@pytest.mark.parametrize("ignored", ["create", "replace"])
def test_a_service_that_ignores_conditions_is_refused(ignored: str) -> None:
    objects = Heedless(ignored)

    with pytest.raises(StoreUnreachable, match="ignores conditional puts") as caught:
        opened(objects)

    assert caught.value.hint
    assert objects.bucket.names() == []


class Passing(NoWait):
    """Each look at it is a second later."""

    def monotonic(self) -> float:
        self.slept_s += 1
        return self.slept_s


def test_a_store_that_refuses_an_object_while_none_is_there_is_corrupt(bucket: Bucket) -> None:
    class Refusing(MemoryObjects):
        refuses = False

        def create(self, name: str, data: bytes) -> bool:
            return not self.refuses and super().create(name, data)

    objects = Refusing(bucket)
    store = S3LogConsensus(objects, clock=Passing(), checkpoint_every=EVERY)
    append(store, "a", 2)
    objects.refuses = True
    with pytest.raises(CorruptBlob, match="although no other process wrote"):
        append(store, "a", 1)
    objects.refuses = False
    append(store, "a", 1)
