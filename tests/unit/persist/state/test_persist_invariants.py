"""The validator finds one planted violation of each rule."""

from dataclasses import replace

import pytest

from holdfast.errors import CLOSED
from holdfast.persist import Schema
from holdfast.persist.state.invariants import check_state, check_step
from holdfast.persist.state.state import (
    AppendBatch,
    Batch,
    CriticalReader,
    Garbage,
    LeasedReader,
    Part,
    PendingBatch,
    PutSchema,
    ReplaceBatches,
    Rollup,
    ShardState,
    StateDiff,
    WriteMode,
    apply,
)
from unit.persist.open_stores import SCHEMA, SHARD


def part(lower: int, upper: int, key: str = "p") -> Part:
    return Part(1, 1, lower, upper, 10, blob_key=key)


NEXT_SCHEMA = Schema.of({"k": "int64"}, {"v": "string?"})
READER = LeasedReader("r", 15, 8, 0, 1, "", "")
STATE = ShardState(
    SHARD,
    seqno=9,
    wall_ms=50,
    since=12,
    gc_seqno=4,
    schemas={1: SCHEMA},
    batches=(
        Batch(7, 0, 10, 12, ((part(12, 13, "p1"),), (part(0, 5, "p2"),)), 1),
        Batch(8, 10, 20, 0, ((part(10, 20, "p3"),),)),
    ),
    leased_readers={"r": READER},
    critical_readers={"c": CriticalReader("c", 12, "")},
    rollups={6: Rollup(6, "roll", 1, 1)},
    garbage={"old": Garbage("old", 7, 1)},
)


def test_a_sound_state_passes() -> None:
    check_state(STATE)
    check_state(ShardState(SHARD))
    check_step(STATE, replace(STATE, seqno=10, since=12, wall_ms=51))


def with_part(bad: Part) -> ShardState:
    return replace(STATE, batches=(*STATE.batches[:1], replace(STATE.batches[1], runs=((bad,),))))


def pending(*parts: Part, id_: str = "b") -> PendingBatch:
    return PendingBatch(id_, "w", 20, 30, tuple((part,) for part in parts))


def with_pending(*parts: Part, id_: str = "b") -> ShardState:
    return replace(STATE, write_mode=WriteMode.WRITE_SEAL, pending={"b": pending(*parts, id_=id_)})


def with_batch(**fields: object) -> ShardState:
    return replace(STATE, batches=(*STATE.batches[:1], replace(STATE.batches[1], **fields)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (replace(STATE, batches=STATE.batches[1:]), "begins at 10, not 0"),
        (with_batch(lower=11), "begins at 11, not 10"),
        (with_batch(upper=10), "empty or beyond closed"),
        (with_batch(upper=CLOSED + 1), "empty or beyond closed"),
        (with_batch(id=10), "comes from the future"),
        (with_batch(id=7), "two batches have one id"),
        (with_batch(since=13), "compacted beyond since"),
        (with_part(part(9, 11)), "a part of times"),
        (with_part(part(10, 21)), "a part of times"),
        (with_part(part(11, 11)), "a part of times"),
        (with_part(replace(part(11, 12), inline=b"")), "a part of no form"),
        (with_part(replace(part(11, 12), blob_key=None)), "a part of no form"),
        (with_part(replace(part(11, 12), rows=0)), "without rows"),
        (with_part(replace(part(11, 12), schema_id=2)), "unknown schema"),
        (replace(STATE, finalized=True, pending={"b": pending(part(20, 21))}), "where they can't be"),
        (replace(STATE, pending={"b": pending(part(19, 21))}), "pending batch b has a part of times"),
        (replace(STATE, pending={"b": pending(), "c": pending()}), "pending batch c is none"),
        (
            replace(STATE, pending={"b": pending(part(20, 22)), "c": pending(part(20, 22), id_="c")}),
            "two live",
        ),
        (with_pending(replace(part(20, 21), schema_id=2)), "pending batch b has a part of an unknown schema"),
        (with_pending(replace(part(20, 21), inline=b"")), "pending batch b has a part of no form"),
        (with_pending(part(19, 21)), "pending batch b has a part of times"),
        (with_pending(part(20, 20)), "pending batch b has a part of times"),
        (with_pending(part(20, 31)), "pending batch b has a part of times"),
        (with_pending(), "pending batch b is none"),
        (with_pending(part(20, 21), id_="c"), "pending batch b is none"),
        (with_pending(part(20, 22), part(21, 23)), "two live references to the same updates"),
        (with_pending(part(20, 21, "old")), "a live blob is garbage"),
        (with_pending(part(20, 21, "roll")), "two live references"),
        (replace(STATE, schemas={1: SCHEMA, 3: NEXT_SCHEMA}), r"schemas have ids \[1, 3\]"),
        (replace(STATE, schemas={1: NEXT_SCHEMA, 2: SCHEMA}), "schema 2 can't follow"),
        (with_part(part(11, 12, "p1")), "two live references"),
        (with_part(part(11, 12, "roll")), "two live references"),
        (with_part(part(11, 12, "old")), "a live blob is garbage"),
        (replace(STATE, garbage={"roll": Garbage("roll", 7, 1)}), "a live blob is garbage"),
        (replace(STATE, rollups={9: Rollup(9, "x", 1, 1)}), "a rollup comes from the future"),
        (replace(STATE, gc_seqno=10), "gc has passed the head"),
        (replace(STATE, leased_readers={"r": replace(READER, seqno_hold=10)}), "a version to come"),
        (replace(STATE, leased_readers={"r": replace(READER, since=11)}), "beyond a hold"),
        (replace(STATE, critical_readers={"c": CriticalReader("c", 11, "")}), "beyond a hold"),
        (replace(STATE, since=20, leased_readers={}, critical_readers={}), "beyond upper"),
        (replace(STATE, finalized=True), "finalized but not closed"),
    ],
)
def test_a_broken_state_is_found(state: ShardState, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_state(state)
    with pytest.raises(AssertionError, match=words):
        check_step(replace(STATE, since=0, gc_seqno=0, batches=()), state)


PLAIN = ShardState(
    SHARD, seqno=5, wall_ms=50, since=3, gc_seqno=4, schemas={1: SCHEMA}, batches=(Batch(1, 0, 20),)
)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (replace(PLAIN, seqno=6, since=2), "since regressed 3 -> 2"),
        (replace(PLAIN, seqno=6, batches=(Batch(1, 0, 19),)), "upper regressed 20 -> 19"),
        (replace(PLAIN, seqno=6, gc_seqno=3), "gc_seqno regressed 4 -> 3"),
        (replace(PLAIN, seqno=6, wall_ms=49), "wall_ms regressed 50 -> 49"),
        (replace(PLAIN, seqno=6, schemas={1: NEXT_SCHEMA}), "schema 1 changed"),
    ],
)
def test_nothing_goes_back(after: ShardState, words: str) -> None:
    check_state(after)
    with pytest.raises(AssertionError, match=words):
        check_step(PLAIN, after)


def diff(seqno: int, shard: str = SHARD) -> StateDiff:
    return StateDiff(seqno, shard, "", 60, "", None, (AppendBatch(Batch(10, 20, 30)),))


def test_a_version_follows_only_its_own_predecessor() -> None:
    assert apply(STATE, diff(10)).upper == 30
    for wrong in (diff(9), diff(11), diff(10, SHARD.replace("1", "2"))):
        with pytest.raises(ValueError, match="after 9 of"):
            apply(STATE, wrong)


def test_two_schemas_may_come_with_one_version() -> None:
    schemas = (NEXT_SCHEMA, Schema.of({"k": "int64"}, {"v": "string?", "w": "int8?"}))
    puts = tuple(PutSchema(id_, schema) for id_, schema in enumerate(schemas, start=2))
    after = apply(PLAIN, StateDiff(6, SHARD, "", 60, "", None, puts))
    assert [*after.schemas.values()] == [SCHEMA, *schemas]
    check_step(PLAIN, after)


def test_only_neighbours_are_replaced() -> None:
    three = apply(STATE, diff(10))
    merged = Batch(11, 0, 30)
    for ids in ((7, 10), (8, 7)):
        step = StateDiff(11, SHARD, "", 60, "", None, (ReplaceBatches(ids, merged),))
        with pytest.raises(ValueError, match="not neighbours"):
            apply(three, step)


def test_a_seal_that_loses_something_is_found() -> None:
    old = with_pending(part(20, 25, "x"), part(22, 30, "y"))
    taken = Batch(10, 20, 24, 0, ((part(20, 24, "x"),), (part(22, 24, "y"),)))
    left = pending(part(24, 25, "x"), part(24, 30, "y"))
    new = replace(old, seqno=10, batches=(*old.batches, taken), pending={"b": left})
    check_step(old, new)
    lost = [
        replace(new, pending={}),
        replace(new, pending={"b": pending(part(24, 30, "y"))}),
        replace(new, pending={"b": pending(part(24, 25, "x"), part(25, 30, "y"))}),
        replace(new, batches=(*old.batches, replace(taken, runs=taken.runs[:1]))),
        replace(
            old, seqno=10, batches=(old.batches[0], replace(old.batches[1], upper=24)), pending={"b": left}
        ),
    ]
    for broken in lost:
        with pytest.raises(AssertionError, match="the seal lost updates of pending batch b"):
            check_step(old, broken)
