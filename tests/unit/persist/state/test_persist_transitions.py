"""Each command on a shard's state: its commit, that it knows its own effect, and its refusals."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import (
    CLOSED,
    AsOfTooEarly,
    BadInput,
    CodecMismatch,
    Fenced,
    HandleExpired,
    ShardFinalized,
    UpperMismatch,
)
from holdfast.persist.ids import critical_id
from holdfast.persist.rows.schema import Schema
from holdfast.persist.state.command import (
    AddRollup,
    AppendRuns,
    AppendStaged,
    ClaimBatches,
    Command,
    Commit,
    CondemnOrphans,
    DowngradeCritical,
    DowngradeReader,
    DropCritical,
    DropReader,
    DropStaged,
    EvolveSchema,
    ExpireHandles,
    FinalizeShard,
    ForgetGarbage,
    Handle,
    InstallCompaction,
    InstallPending,
    NoOp,
    RegisterCritical,
    RegisterReader,
    RegisterWriter,
    Reject,
    Seal,
    Stage,
    Write,
)
from holdfast.persist.state.invariants import check_step
from holdfast.persist.state.state import (
    Batch,
    CriticalReader,
    Garbage,
    LeasedReader,
    Part,
    PendingBatch,
    Rollup,
    ShardState,
    StateDiff,
    WriteMode,
    Writer,
    apply,
    part_keys,
)
from holdfast.persist.state.transition import transition
from unit.persist.open_stores import SCHEMA, SHARD

EMPTY = ShardState(SHARD)
NEXT_SCHEMA = Schema.of({"k": "int64"}, {"v": "string?"})
OTHER_SCHEMA = Schema.of({"k": "int64"}, {"v": "int64"})
W1, W2, W3 = (Handle(f"w{n}", f"writer {n}", "ship", 1000) for n in (1, 2, 3))
R1, R2 = (Handle(f"r{n}", f"reader {n}", "ship", 1000) for n in (1, 2))
HOLD = critical_id(SHARD, "backup")


def blob(key: str, lower: int = 0, upper: int = 1) -> Part:
    return Part(1, 1, lower, upper, 10, 7, blob_key=f"{SHARD}/w1/{key}")


def append(lower: int, upper: int, *parts: Part, token: bytes = b"t", by: Handle = W1) -> AppendRuns:
    return AppendRuns(by, token, SCHEMA, lower, upper, tuple((part,) for part in parts))


def after(state: ShardState, *commands: Command) -> ShardState:
    """The state after commands that must all commit, each checked as a step."""
    for command in commands:
        outcome = transition(state, command)
        assert isinstance(outcome, Commit), (command, outcome)
        new = apply(state, StateDiff(state.seqno + 1, SHARD, "0", state.seqno, "ship", None, outcome.changes))
        check_step(state, new)
        state = new
    return state


WRITTEN = after(
    EMPTY,
    append(0, 10, blob("a", 0, 5), token=b"a"),
    append(10, 20, blob("b", 10, 20), token=b"b"),
    append(20, 30, blob("c", 25, 26), token=b"c", by=W2),
)
HELD = after(WRITTEN, RegisterReader(R1), RegisterReader(R2), RegisterCritical("backup", b"o"))
MOVED = after(WRITTEN, RegisterCritical("backup", b""), DowngradeCritical(HOLD, 9))
ENDED = after(HELD, FinalizeShard(5))
ROLLED = after(WRITTEN, AddRollup(Rollup(3, f"{SHARD}/v3-x", 5, 5), 77))


def test_the_first_command_of_a_writer_makes_the_shard() -> None:
    for command in (RegisterWriter(W1, SCHEMA), append(0, 1, blob("a"))):
        assert not EMPTY.exists
        state = after(EMPTY, command)
        assert state.exists
        assert (state.schema, state.since, [*state.writers]) == (SCHEMA, 0, ["w1"])


def test_an_append_adds_its_batch_at_the_upper() -> None:
    state = after(WRITTEN, append(30, 35, blob("d", 31, 32), blob("e", 30, 35)))
    assert state.batches[-1] == Batch(4, 30, 35, 0, ((blob("d", 31, 32),), (blob("e", 30, 35),)), level=0)
    assert state.batches[:-1] == WRITTEN.batches
    assert state.writers["w1"] == Writer("w1", 3, 1000, "writer 1", "ship", b"t", 35)


def test_an_append_of_nothing_extends_the_last_batch() -> None:
    state = after(WRITTEN, append(30, CLOSED))
    assert len(state.batches) == 3
    assert (state.batches[-1].lower, state.upper) == (20, CLOSED)
    assert after(EMPTY, append(0, 5)).batches == (Batch(1, 0, 5),)


def test_a_part_is_filed_under_the_id_that_its_schema_has() -> None:
    part = replace(blob("d", 30, 31), schema_id=9)
    assert after(WRITTEN, append(30, 31, part)).batches[-1].runs[0][0].schema_id == 1


def test_holds_begin_at_since_and_name_their_version() -> None:
    moved = after(
        HELD, *(DowngradeReader(r, 5, 0, 1) for r in ("r1", "r2")), DowngradeCritical(HOLD, 7, b"o", b"o")
    )
    assert moved.since == 5
    state = after(moved, RegisterReader(Handle("r3", "late", "ship", 9)), RegisterCritical("new", b"n"))
    assert state.leased_readers["r3"] == LeasedReader("r3", 5, moved.seqno + 1, 0, 9, "late", "ship")
    new = critical_id(SHARD, "new")
    assert state.critical_readers[new] == CriticalReader(new, 5, "new", b"n")


def test_since_is_the_least_hold_and_stays_below_the_upper() -> None:
    state = after(HELD, DowngradeReader("r1", 12, 0, 1))
    assert state.since == 0
    state = after(state, DowngradeReader("r2", 11, 0, 1))
    assert state.since == 0
    state = after(state, DowngradeCritical(HOLD, 13, b"o", b"o"))
    assert state.since == 11
    state = after(state, DowngradeReader("r2", CLOSED, 0, 2), DowngradeReader("r1", CLOSED, 0, 2))
    assert state.since == 13
    assert after(state, DowngradeCritical(HOLD, CLOSED, b"o", b"o")).since == 29


def test_a_hold_never_moves_back() -> None:
    state = after(HELD, DowngradeReader("r1", 12, 4, 5), DowngradeCritical(HOLD, 12, b"o", b"o"))
    beaten = after(state, DowngradeReader("r1", 3, 2, 6))
    assert beaten.leased_readers["r1"] == replace(state.leased_readers["r1"], heartbeats=6)
    assert isinstance(transition(state, DowngradeCritical(HOLD, 3, b"o", b"o")), NoOp)


def test_a_hold_beyond_the_upper_moves_since_when_it_is_asked_for_again() -> None:
    alone = after(WRITTEN, RegisterCritical("backup", b""), DowngradeCritical(HOLD, 100))
    assert alone.since == 29
    grown = after(alone, append(30, 60))
    assert grown.since == 29
    assert after(grown, DowngradeCritical(HOLD, 100)).since == 59
    leased = after(WRITTEN, RegisterReader(R1), DowngradeReader("r1", 100, 0, 1), append(30, 60))
    assert after(leased, DowngradeReader("r1", 0, 0, 2)).since == 29
    assert after(leased, DowngradeReader("r1", 100, 0, 2)).since == 59


def test_holds_that_go_leave_since_where_it_is() -> None:
    commands = (
        DropReader("r1"),
        DropCritical(HOLD, b"o"),
        ExpireHandles((("r2", 0),), (("w1", 2), ("w2", 1))),
    )
    state = after(HELD, *commands)
    assert not [*state.holds, *state.writers]
    assert state.since == 0


def test_only_handles_that_are_silent_expire() -> None:
    state = after(HELD, DowngradeReader("r2", 0, 0, 1))
    expire = ExpireHandles((("r1", 0), ("r2", 0), ("r9", 0)), (("w1", 1), ("w2", 1)))
    state = after(state, expire)
    assert [*state.leased_readers] == ["r2"]
    assert [*state.writers] == ["w1"]


def test_a_compaction_replaces_exactly_its_batches() -> None:
    compaction = InstallCompaction((1, 2), 0, (blob("ab", 0, 20),), "w2", 88)
    state = after(WRITTEN, compaction)
    assert state.batches == (Batch(4, 0, 20, 0, ((blob("ab", 0, 20),),), level=1), WRITTEN.batches[2])
    gone = [blob("a").blob_key, blob("b").blob_key]
    assert state.garbage == {key: Garbage(str(key), 4, 88) for key in gone}


def test_a_compaction_to_nothing_leaves_a_batch_without_parts() -> None:
    state = after(WRITTEN, InstallCompaction((1, 2, 3), 0, (), "w2", 88))
    assert state.batches == (Batch(4, 0, 30, 0, (), level=1),)
    assert len(state.garbage) == 3


def test_a_compaction_keeps_an_upper_that_was_extended_meanwhile() -> None:
    state = after(WRITTEN, append(30, 40), InstallCompaction((2, 3), 0, (blob("bc", 10, 26),), "w2", 88))
    assert state.upper == 40


def test_a_new_rollup_makes_the_old_one_garbage() -> None:
    newer = Rollup(4, f"{SHARD}/v4-y", 6, 6)
    state = after(ROLLED, AddRollup(newer, 78))
    assert state.rollups == {4: newer}
    assert state.garbage == {f"{SHARD}/v3-x": Garbage(f"{SHARD}/v3-x", 5, 78)}


def test_garbage_is_forgotten_and_the_log_position_moves_forward() -> None:
    state = after(WRITTEN, InstallCompaction((1, 2, 3), 0, (), "w2", 88))
    keys = tuple(state.garbage)
    state = after(state, ForgetGarbage(keys[:2], 4))
    assert ([*state.garbage], state.gc_seqno) == ([keys[2]], 4)
    assert after(state, ForgetGarbage(keys[2:], 1)).gc_seqno == 4


def test_a_finalized_shard_is_closed_and_empty() -> None:
    assert (ENDED.since, ENDED.upper, ENDED.finalized) == (CLOSED, CLOSED, True)
    assert not [*ENDED.holds, *ENDED.writers]
    assert set(ENDED.garbage) == {part.blob_key for batch in WRITTEN.batches for part in batch.parts}


@pytest.mark.parametrize(
    ("state", "command", "result"),
    [
        (WRITTEN, RegisterWriter(W1, SCHEMA), 1),
        (WRITTEN, EvolveSchema(SCHEMA), 1),
        (after(WRITTEN, EvolveSchema(NEXT_SCHEMA)), EvolveSchema(SCHEMA), 1),
        (WRITTEN, append(10, 20, blob("b", 10, 20), token=b"b"), 20),
        (WRITTEN, append(20, 30, token=b"c", by=W2), 30),
        (HELD, RegisterReader(R1), HELD.leased_readers["r1"]),
        (HELD, RegisterCritical("backup", b"other"), HELD.critical_readers[HOLD]),
        (MOVED, RegisterCritical("backup", b"", 8), MOVED.critical_readers[HOLD]),
        (HELD, DowngradeReader("r1", 0, 0, 0), HELD.leased_readers["r1"]),
        (HELD, DowngradeCritical(HOLD, 0, b"o", b"o"), HELD.critical_readers[HOLD]),
        (HELD, DowngradeCritical(HOLD, 0, b"before", b"o"), HELD.critical_readers[HOLD]),
        (HELD, DropReader("r9"), None),
        (HELD, DropCritical("c9"), None),
        (HELD, ExpireHandles((("r1", 7),), (("w9", 1),)), None),
        (ROLLED, AddRollup(Rollup(3, f"{SHARD}/v3-x", 5, 5), 99), True),
        (ROLLED, AddRollup(Rollup(3, f"{SHARD}/v3-z", 5, 5), 99), False),
        (ROLLED, AddRollup(Rollup(2, f"{SHARD}/v2-z", 5, 5), 99), False),
        (WRITTEN, InstallCompaction((7, 8), 0, (blob("z"),), "w2", 1), False),
        (WRITTEN, InstallCompaction((1, 3), 0, (blob("z"),), "w2", 1), False),
        (WRITTEN, InstallCompaction((2, 3, 4), 0, (blob("z"),), "w2", 1), False),
        (WRITTEN, ForgetGarbage(("gone",), 0), None),
        (ENDED, FinalizeShard(9), None),
        (ENDED, DropReader("r1"), None),
        (ENDED, DropCritical(HOLD), None),
        (ENDED, InstallCompaction((1, 2), 0, (blob("z"),), "w2", 1), False),
        (ENDED, ExpireHandles((("r1", 0),), ()), None),
    ],
)
def test_nothing_has_to_change(state: ShardState, command: Command, result: Any) -> None:
    assert transition(state, command) == NoOp(result)


@pytest.mark.parametrize(
    ("state", "command"),
    [
        (EMPTY, RegisterWriter(W1, SCHEMA)),
        (WRITTEN, EvolveSchema(NEXT_SCHEMA)),
        (WRITTEN, append(30, 31, blob("d", 30, 31))),
        (WRITTEN, append(30, 31)),
        (WRITTEN, RegisterReader(R1)),
        (HELD, DowngradeReader("r1", 9, 3, 2)),
        (HELD, DropReader("r1")),
        (HELD, ExpireHandles((("r1", 0),), (("w1", 2),))),
        (WRITTEN, RegisterCritical("new", b"")),
        (HELD, DowngradeCritical(HOLD, 9, b"o", b"o")),
        (HELD, DowngradeCritical(HOLD, 0, b"o", b"next")),
        (HELD, DowngradeCritical(HOLD, 9, b"o", b"next")),
        (HELD, DropCritical(HOLD, b"o")),
        (ROLLED, AddRollup(Rollup(4, f"{SHARD}/v4-y", 6, 6), 1)),
        (WRITTEN, InstallCompaction((1, 2), 0, (blob("ab", 0, 20),), "w2", 1)),
        (
            after(WRITTEN, InstallCompaction((1, 2), 0, (), "w2", 1)),
            ForgetGarbage((str(blob("a").blob_key),), 2),
        ),
        (HELD, FinalizeShard(1)),
    ],
)
def test_a_command_knows_its_own_effect(state: ShardState, command: Command) -> None:
    first = transition(state, command)
    assert isinstance(first, Commit)
    again = transition(after(state, command), command)
    assert isinstance(again, NoOp)
    assert again.result == first.result


def test_a_compaction_is_known_when_its_result_gave_way_to_another() -> None:
    first = InstallCompaction((1, 2), 0, (blob("ab", 0, 20),), "w2", 1)
    second = InstallCompaction((4, 3), 0, (blob("abc", 0, 26),), "w1", 1)
    state = after(WRITTEN, first, second)
    assert transition(state, first) == NoOp(True)


def test_a_compaction_is_known_by_any_of_its_parts() -> None:
    """Garbage is forgotten one by one: who is told that nothing was in deletes all of it."""
    first = InstallCompaction((1, 2), 0, (blob("ab", 0, 5), blob("bb", 5, 20)), "w2", 1)
    second = InstallCompaction((4, 3), 0, (blob("abc", 0, 26),), "w1", 1)
    state = after(WRITTEN, first, second, ForgetGarbage((str(blob("ab").blob_key),), 0))
    assert transition(state, first) == NoOp(True)


def test_a_result_is_refused_once_its_writer_was_taken_for_dead() -> None:
    install = InstallCompaction((1, 2), 0, (blob("ab", 0, 20),), "w2", 1)
    silent = tuple((writer.id, writer.heartbeats) for writer in WRITTEN.writers.values())
    gone = after(WRITTEN, ExpireHandles((), silent))
    assert transition(gone, install) == NoOp(False)
    assert isinstance(transition(gone, replace(install, parts=())), Commit), "nothing was uploaded"
    condemned = after(gone, CondemnOrphans(((str(blob("ab").blob_key), 1),)))
    assert transition(replace(condemned, writers=WRITTEN.writers), install) == NoOp(False)


def test_the_entry_of_a_result_s_writer_ends_with_it_and_never_comes_back() -> None:
    claim = ClaimBatches("k1", W3, (1, 2), 0)
    state = after(WRITTEN, claim)
    assert transition(state, claim) == NoOp(True)
    state = after(state, replace(claim, heartbeat=1))
    state = after(state, InstallCompaction((1, 2), 0, (blob("ab", 0, 20),), "w3", 1))
    assert ("w3" in state.writers, state.claims) == (False, {})
    state = after(WRITTEN, claim, ExpireHandles((), (("w3", 0),)))
    assert transition(state, replace(claim, heartbeat=1)) == NoOp(False)


def test_a_compaction_beyond_since_is_refused() -> None:
    """Its claim is from before the log was recovered, from a version that had a lower since."""
    assert transition(WRITTEN, InstallCompaction((1, 2), 3, (blob("ab", 3, 20),), "w2", 1)) == NoOp(False)


def test_a_rollup_that_gave_way_to_another_is_known() -> None:
    """It waits as garbage for a restore: who is told that it was not recorded deletes it."""
    state = after(ROLLED, AddRollup(Rollup(4, f"{SHARD}/v4-y", 6, 6), 78))
    assert transition(state, AddRollup(Rollup(3, f"{SHARD}/v3-x", 5, 5), 99)) == NoOp(True)


def test_a_merge_of_what_is_pending_is_known_by_any_of_its_parts() -> None:
    def write(name: str, lower: int, upper: int) -> Write:
        return Write(W1, name.encode(), SCHEMA, f"b{name}", ((blob(name, lower, upper),),))

    def seal(lower: int, upper: int) -> Seal:
        return Seal(W1, b"s%d" % upper, SCHEMA, lower, upper)

    def merge(state: ShardState, name: str, *parts: Part) -> InstallPending:
        return InstallPending(tuple(state.pending.values()), f"b{name}", "w2", (parts,), 1)

    def registered(state: ShardState) -> ShardState:
        return after(state, RegisterWriter(W2, SCHEMA, WriteMode.WRITE_SEAL))

    written = after(EMPTY, write("1", 0, 30), write("2", 0, 30))
    first = merge(written, "p", blob("p1", 0, 4), blob("p2", 0, 30))
    assert transition(written, first) == NoOp(False), "its writer is not known"
    state = after(registered(written), first, seal(0, 5), seal(5, 15), write("3", 20, 30))
    assert "w2" not in state.writers
    state = registered(state)
    state = after(state, merge(state, "q", blob("q", 15, 30)))
    (sealed, _) = state.batches
    state = after(registered(state), InstallCompaction((sealed.id,), 0, (blob("c", 0, 5),), "w2", 1))
    state = after(state, ForgetGarbage((str(blob("p1").blob_key),), 0))
    assert blob("p2").blob_key in part_keys(state)
    assert transition(state, first) == NoOp(True)


@pytest.mark.parametrize(
    ("state", "command", "error", "words"),
    [
        (WRITTEN, append(20, 40), UpperMismatch, "is 30, expected 20"),
        (WRITTEN, append(31, 40), UpperMismatch, "is 30, expected 31"),
        (EMPTY, append(3, 4), UpperMismatch, "is 0, expected 3"),
        (WRITTEN, AppendRuns(W1, b"t", OTHER_SCHEMA, 30, 31, ()), CodecMismatch, "v string"),
        (WRITTEN, RegisterWriter(W1, OTHER_SCHEMA), CodecMismatch, "v int64"),
        (WRITTEN, EvolveSchema(OTHER_SCHEMA), CodecMismatch, "v int64"),
        (EMPTY, EvolveSchema(SCHEMA), BadInput, "does not exist"),
        (EMPTY, RegisterReader(R1), BadInput, "does not exist"),
        (EMPTY, RegisterCritical("x", b""), BadInput, "does not exist"),
        (MOVED, RegisterCritical("x", b"", 8), AsOfTooEarly, "8 is before since 9"),
        (EMPTY, FinalizeShard(1), BadInput, "does not exist"),
        (HELD, DowngradeReader("r9", 1, 1, 1), HandleExpired, "r9"),
        (HELD, DowngradeCritical("c9", 1), HandleExpired, "c9"),
        (HELD, DowngradeCritical(HOLD, 9), Fenced, "hold 'backup' on s0"),
        (HELD, DowngradeCritical(HOLD, 0, b"x", b"x"), Fenced, "hold 'backup' on s0"),
        (HELD, DowngradeCritical(HOLD, 9, b"x", b"next"), Fenced, "hold 'backup' on s0"),
        (HELD, DropCritical(HOLD, b"x"), Fenced, "hold 'backup' on s0"),
        (ENDED, append(0, 1), ShardFinalized, SHARD),
        (ENDED, RegisterWriter(W1, SCHEMA), ShardFinalized, SHARD),
        (ENDED, EvolveSchema(NEXT_SCHEMA), ShardFinalized, SHARD),
        (ENDED, RegisterReader(R1), ShardFinalized, SHARD),
        (ENDED, RegisterCritical("x", b""), ShardFinalized, SHARD),
        (ENDED, DowngradeReader("r1", 1, 1, 1), ShardFinalized, SHARD),
        (ENDED, DowngradeCritical(HOLD, 1), ShardFinalized, SHARD),
    ],
)
def test_a_command_is_refused(
    state: ShardState, command: Command, error: type[Exception], words: str
) -> None:
    outcome = transition(state, command)
    assert isinstance(outcome, Reject)
    assert type(outcome.error) is error
    assert words in str(outcome.error)


def test_writers_are_in_the_order_of_their_last_append() -> None:
    assert [*WRITTEN.writers] == [W1.id, W2.id]
    assert [*after(WRITTEN, append(30, 40)).writers] == [W2.id, W1.id]


def test_an_append_that_ended_a_finalized_shard_is_still_known() -> None:
    closed = after(WRITTEN, append(30, CLOSED, token=b"last"))
    assert transition(closed, append(30, CLOSED, token=b"last")) == NoOp(CLOSED)


def stage(*batches: tuple[str, *tuple[Part, ...]], lower: int = 30, by: Handle = W1) -> Stage:
    """Batches of a name and a part each, or none."""
    return Stage(
        by, SCHEMA, lower, 40, tuple((name, (tuple(parts),) if parts else ()) for name, *parts in batches)
    )


def take(*names: str, runs: tuple[tuple[Part, ...], ...], lower: int = 30) -> AppendStaged:
    return AppendStaged(W1, b"take", SCHEMA, lower, 40, names, runs)


D, E, F = (blob(name, 39, 40) for name in "def")
STAGED = after(WRITTEN, stage(("one", D), ("none",)), stage(("two", E), by=W2))


def test_what_is_staged_is_kept_and_no_part_of_the_contents() -> None:
    assert [*STAGED.pending] == ["one", "none", "two"]
    assert STAGED.pending["one"] == PendingBatch("one", "w1", 30, 40, ((D,),))
    assert (STAGED.batches, STAGED.upper) == (WRITTEN.batches, 30)
    assert part_keys(STAGED) - part_keys(WRITTEN) == {D.blob_key, E.blob_key}
    assert after(STAGED, append(30, 35, blob("x", 31, 32))).pending == STAGED.pending


def test_who_comes_first_has_the_name() -> None:
    again = stage(("one", F), ("three", blob("g", 39, 40)), by=W2)
    outcome = transition(STAGED, again)
    assert isinstance(outcome, Commit)
    assert outcome.result == {"one"}
    state = after(STAGED, again)
    assert [*state.pending] == ["one", "none", "two", "three"]
    assert state.pending["one"] == STAGED.pending["one"]


def test_an_append_takes_all_that_it_names_and_leaves_the_rest() -> None:
    state = after(STAGED, take("two", "none", runs=((E,),)))
    assert state.batches[-1] == Batch(6, 30, 40, 0, ((E,),))
    assert [*state.pending] == ["one"]
    assert not state.garbage
    swept = after(state, DropStaged(7, state.upper))
    assert not swept.pending
    assert [*swept.garbage.values()] == [Garbage(str(D.blob_key), 7, 7)]


def test_runs_that_were_joined_have_the_same_parts() -> None:
    state = after(STAGED, take("one", "none", "two", runs=((E, D),)))
    assert state.batches[-1].runs == ((E, D),)
    assert not state.pending


def test_what_is_staged_is_dropped_at_once_or_with_the_shard() -> None:
    gone = {str(D.blob_key), str(E.blob_key)}
    state = after(STAGED, DropStaged(7))
    assert (state.pending, state.batches) == ({}, WRITTEN.batches)
    assert {*state.garbage} == gone
    assert isinstance(transition(STAGED, DropStaged(7, 30)), NoOp)
    assert gone <= {*after(STAGED, FinalizeShard(7)).garbage}


@pytest.mark.parametrize(
    ("state", "command", "error"),
    [
        (STAGED, take("one", "four", runs=((D,),)), HandleExpired),
        (STAGED, take("one", "one", runs=((D,), (D,))), BadInput),
        (STAGED, take("one", "two", runs=((D,),)), BadInput),
        (STAGED, take("one", runs=((D,), (E,))), BadInput),
        (STAGED, take("one", runs=((F,),)), BadInput),
        (STAGED, take("one", runs=((D,),), lower=29), UpperMismatch),
        (after(STAGED, append(30, 31)), take("one", runs=((D,),), lower=31), BadInput),
        (STAGED, stage(("four", F), lower=20), UpperMismatch),
        (STAGED, stage(("four", F), by=W3), HandleExpired),
        (after(STAGED, DropStaged(7)), stage(("one", D)), HandleExpired),
        (ENDED, stage(("four", F)), ShardFinalized),
        (STAGED, Stage(W1, OTHER_SCHEMA, 30, 40, ()), CodecMismatch),
        (after(EMPTY, RegisterWriter(W1, SCHEMA, WriteMode.WRITE_SEAL)), stage(lower=0), BadInput),
    ],
)
def test_staging_is_refused(state: ShardState, command: Command, error: type[Exception]) -> None:
    outcome = transition(state, command)
    assert isinstance(outcome, Reject)
    assert type(outcome.error) is error


@pytest.mark.parametrize(
    ("state", "command", "result"),
    [
        (STAGED, stage(("one", D), ("none",)), frozenset()),
        (STAGED, stage(("one", F)), {"one"}),
        (after(STAGED, take("one", runs=((D,),))), stage(("one", D)), frozenset()),
        (after(STAGED, take("one", runs=((D,),))), take("one", runs=((D,),)), 40),
        (after(STAGED, DropStaged(7)), DropStaged(8), None),
        (ENDED, DropStaged(8), None),
        (after(EMPTY, RegisterWriter(W1, SCHEMA, WriteMode.WRITE_SEAL)), DropStaged(8), None),
    ],
)
def test_staging_knows_its_own_effect(state: ShardState, command: Command, result: object) -> None:
    assert transition(state, command) == NoOp(result)
