"""The promises of a stash, on both engines: commits, reads at any time, consolidation, limits."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.errors import (
    AsOfNotYetAvailable,
    AsOfTooEarly,
    BadInput,
    DiffOverflow,
    HoldfastError,
    NoLocation,
    NotWritable,
    UpperMismatch,
)
from holdfast.stash import MAX_ROW_BYTES, MAX_TIME, Stash, StashFrontiers, StashUpdate, open_stash
from holdfast.stash.postgres import PostgresStash
from holdfast.stash.sqlite import SqliteStash

A, B = StashUpdate(1, b"a", b"1", 1), StashUpdate(2, b"b", b"2", 1)
Contents = Counter[tuple[int, bytes, bytes]]


@pytest.fixture
def stash(stash_url: str) -> Iterator[Stash]:
    with open_stash(stash_url, create=True, names={1: "things"}) as stash:
        yield stash


def retracted(update: StashUpdate) -> StashUpdate:
    return update._replace(diff=-update.diff)


def contents(stash: Stash, as_of: int, *collections: int) -> Contents:
    found: Contents = Counter()
    for row in stash.rows(as_of, collections):
        assert row[:3] not in found, "rows are consolidated"
        found[row[:3]] = row.diff
    return found


def test_what_is_committed_is_read_at_its_time_and_later(stash: Stash) -> None:
    assert stash.frontiers() == StashFrontiers(0, 0)
    stash.append([A, B], 0)
    stash.append([retracted(A), A._replace(value=b"3")], 1)
    stash.append([], 2)

    assert stash.frontiers() == StashFrontiers(0, 3)
    assert contents(stash, 0) == {(1, b"a", b"1"): 1, (2, b"b", b"2"): 1}
    assert contents(stash, 2) == contents(stash, 1) == {(1, b"a", b"3"): 1, (2, b"b", b"2"): 1}
    assert contents(stash, 2, 2) == {(2, b"b", b"2"): 1}
    assert contents(stash, 2, 7) == {}
    assert list(stash.changes(0, 1)) in ([(0, A), (0, B)], [(0, B), (0, A)])
    assert {update for _, update in stash.changes(1)} == {retracted(A), A._replace(value=b"3")}
    assert list(stash.changes(2)) == []


def test_a_commit_for_another_upper_changes_nothing(stash: Stash) -> None:
    stash.append([A], 0)
    for at in (0, 2, 17):
        with pytest.raises(UpperMismatch) as raised:
            stash.append([B], at)
        assert (raised.value.expected, raised.value.actual) == (at, 1)
    assert stash.frontiers().upper == 1
    stash.append([], 1)
    assert contents(stash, 1) == {A[:3]: 1}


def test_updates_that_end_in_an_error_leave_nothing(stash: Stash) -> None:
    def updates() -> Iterator[StashUpdate]:
        yield from [StashUpdate(1, b"%d" % number, bytes(1000), 1) for number in range(10_000)]
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        stash.append(updates(), 0)
    assert stash.frontiers().upper == 0
    stash.append([A], 0)
    assert contents(stash, 0) == {A[:3]: 1}


def test_updates_may_be_made_from_what_is_read(stash: Stash) -> None:
    before = [StashUpdate(1, b"%d" % number, b"v", 1) for number in range(5000)]
    stash.append(before, 0)

    def upgraded() -> Iterator[StashUpdate]:
        for row in stash.rows(0, [1]):
            yield retracted(row)
            yield row._replace(value=b"w")

    stash.append(upgraded(), 1)

    assert contents(stash, 1) == {row._replace(value=b"w")[:3]: 1 for row in before}


@pytest.mark.parametrize("seed", range(4))
def test_any_history_reads_as_it_was_written(stash_url: str, seed: int) -> None:
    """Commits, a since that moves, and consolidation batch by batch, beside a model of each time."""
    chance = random.Random(seed)
    model: list[Contents] = []
    since = 0
    with open_stash(stash_url, create=True) as stash:
        for _ in range(60):
            match chance.choices(["commit", "allow", "consolidate", "read", "changes"], [5, 1, 2, 2, 1])[0]:
                case "commit":
                    now: Contents = Counter(model[-1] if model else {})
                    updates = []
                    for _ in range(chance.randrange(4)):
                        key = chance.choice([b"", b"k", b"long" * 400])
                        row = (chance.randrange(2), key, chance.choice([b"", b"v"]))
                        diff = chance.choice([-1, 1, 1, 2])
                        updates.append(StashUpdate(*row, diff))
                        now[row] += diff
                    stash.append(updates, len(model))
                    model.append(Counter({row: count for row, count in now.items() if count}))
                case "allow" if model:
                    since = max(since, chance.randrange(len(model)))
                    stash.allow_compaction(since)
                case "consolidate":
                    stash.consolidate(max_batches=1)
                case "read" if model:
                    as_of = chance.randrange(since, len(model))
                    assert contents(stash, as_of) == model[as_of]
                case "changes" if since + 1 < len(model):
                    lower = chance.randrange(since + 1, len(model))
                    seen = Counter(model[lower - 1])
                    for _, update in stash.changes(lower):
                        seen[update[:3]] += update.diff
                    assert Counter({row: count for row, count in seen.items() if count}) == model[-1]
        assert stash.frontiers() == StashFrontiers(since, len(model))
        for as_of in range(since, len(model)):
            assert contents(stash, as_of) == model[as_of]


def test_consolidation_removes_what_cancels_out(stash: Stash) -> None:
    for time in range(10):
        row = StashUpdate(1, b"k", b"%d" % time, 1)
        before = row._replace(value=b"%d" % (time - 1))
        stash.append([row] if time == 0 else [retracted(before), row], time)
    stash.allow_compaction(8)
    stash.append([B], 10)
    assert stash.consolidate()

    # What is left of the past at 8, and the changes after it.
    reads = [contents(stash, as_of) for as_of in (8, 9, 10)]
    assert reads[0] == {(1, b"k", b"8"): 1}
    assert reads[1] == {(1, b"k", b"9"): 1}
    assert reads[2] == {(1, b"k", b"9"): 1, (2, b"b", b"2"): 1}
    with pytest.raises(AsOfTooEarly):
        list(stash.rows(7))
    with pytest.raises(AsOfTooEarly):
        list(stash.changes(8))
    assert len(list(stash.changes(9))) == 3


def test_since_passes_no_time_that_is_held(stash: Stash) -> None:
    for time in range(10):
        row = StashUpdate(1, b"k", b"%d" % time, 1)
        before = row._replace(value=b"%d" % (time - 1))
        stash.append([row] if time == 0 else [retracted(before), row], time)
    assert stash.holds() == {}
    stash.hold("a", 3)
    stash.hold("b", 5)
    stash.allow_compaction(8)
    assert stash.frontiers().since == 3
    assert stash.consolidate()
    assert contents(stash, 3) == {(1, b"k", b"3"): 1}
    with pytest.raises(AsOfTooEarly):
        stash.hold("c", 2)
    stash.hold("a", 7)
    assert stash.holds() == {"a": 7, "b": 5}
    stash.allow_compaction(4)
    stash.allow_compaction(8)
    assert stash.frontiers().since == 5
    stash.release("b")
    stash.release("b")
    stash.allow_compaction(8)
    assert stash.frontiers().since == 7
    stash.release("a")
    stash.allow_compaction(8)
    stash.allow_compaction(2)
    assert stash.frontiers().since == 8


def test_consolidation_leaves_alone_what_came_after_since(stash: Stash) -> None:
    stash.append([A._replace(diff=2)], 0)
    stash.append([retracted(A)], 1)
    stash.append([A], 2)
    stash.allow_compaction(1)
    assert stash.consolidate()
    assert [contents(stash, as_of)[A[:3]] for as_of in (1, 2)] == [1, 2]


def test_a_read_that_is_overtaken_by_a_consolidation_is_of_its_time(
    stash: Stash, stash_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody commits, lets go of the past and consolidates after a read has looked at the frontiers."""
    stash.append([A, B], 0)
    owner = SqliteStash if stash_url.startswith("sqlite") else PostgresStash
    name = "_record" if owner is SqliteStash else "_frontiers"
    looked = []

    def meddling(look: Callable[..., Any]) -> Callable[..., Any]:
        def look_and_wait(*args: object) -> Any:
            found = look(*args)
            if not looked:
                looked.append(found)
                with open_stash(stash_url) as another:
                    another.append([retracted(A)], 1)
                    another.append([], 2)
                    another.allow_compaction(2)
                    assert another.consolidate()
            return found

        return look_and_wait

    monkeypatch.setattr(owner, name, meddling(getattr(owner, name)))
    assert contents(stash, 0) == {A[:3]: 1, B[:3]: 1}
    assert [(each.since, each.upper) for each in looked] == [(0, 1)]
    assert contents(stash, 2) == {B[:3]: 1}


def test_consolidation_goes_batch_by_batch(stash: Stash, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in ("sqlite", "postgres"):
        monkeypatch.setattr(f"holdfast.stash.{engine}.CONSOLIDATION_ROWS", 3)
    rows = [StashUpdate(1, b"%d" % number, b"v", 1) for number in range(10)]
    stash.append(rows, 0)
    stash.append(map(retracted, rows), 1)
    stash.append([A], 2)
    stash.allow_compaction(2)
    ended = [stash.consolidate(max_batches=1) for _ in range(4)]
    assert ended == [False, False, False, True]
    assert contents(stash, 2) == {A[:3]: 1}


def test_a_stream_sees_what_was_there_when_it_began(stash: Stash) -> None:
    rows = [StashUpdate(1, b"%d" % number, bytes(300), 1) for number in range(3000)]
    stash.append(rows, 0)
    stream = stash.rows(0)
    first = next(stream)
    stash.append(map(retracted, rows), 1)
    stash.append([A], 2)
    stash.allow_compaction(2)
    assert stash.consolidate()

    assert sorted([first, *stream]) == sorted(rows)
    assert contents(stash, 2) == {A[:3]: 1}


def test_a_stream_that_is_not_read_to_its_end_is_of_no_consequence(stash: Stash) -> None:
    stash.append((StashUpdate(1, b"%d" % number, bytes(1000), 1) for number in range(3000)), 0)
    for _ in range(20):
        stream = stash.rows(0)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    stash.append([A], 1)
    assert stash.frontiers() == StashFrontiers(0, 2)


def test_times_that_cannot_be_read(stash: Stash) -> None:
    with pytest.raises(AsOfNotYetAvailable):
        list(stash.rows(0))
    stash.append([A], 0)
    stash.append([B], 1)
    for as_of in (2, 1 << 70):
        with pytest.raises(AsOfNotYetAvailable):
            list(stash.rows(as_of))
    with pytest.raises(AsOfTooEarly):
        list(stash.rows(-1))
    assert list(stash.changes(1 << 70)) == []
    for since in (-1, 2):
        with pytest.raises(BadInput, match="since"):
            stash.allow_compaction(since)
    stash.allow_compaction(1)
    stash.allow_compaction(0)
    assert stash.frontiers() == StashFrontiers(1, 2)


@pytest.mark.parametrize(
    ("update", "told"),
    [
        (StashUpdate(1, b"k", bytes(MAX_ROW_BYTES), 1), "a row of things has 16,711,681 bytes"),
        (StashUpdate(1, b"k", b"v", 0), "diff"),
        (StashUpdate(1, b"k", b"v", 1 << 63), "diff"),
        (StashUpdate(-1, b"k", b"v", 1), "collection"),
        (StashUpdate(1 << 31, b"k", b"v", 1), "collection"),
        (StashUpdate(1, "k", b"v", 1), "bytes"),  # type: ignore[arg-type]
    ],
)
def test_what_a_stash_cannot_hold_is_refused_whole(stash: Stash, update: StashUpdate, told: str) -> None:
    with pytest.raises(BadInput, match=told) as raised:
        stash.append([A, update], 0)
    assert "\n" not in str(raised.value)
    assert stash.frontiers().upper == 0
    stash.append([A], 0)
    assert contents(stash, 0) == {A[:3]: 1}


def test_a_refused_time_is_shown_beside_the_one_that_the_stash_has(stash: Stash) -> None:
    stash.append([A], 0, upper=5)
    stash.append([], 5)
    stash.allow_compaction(4)

    def told(call: Callable[[], object]) -> str:
        with pytest.raises(HoldfastError) as raised:
            call()
        return f"{raised.value}; {raised.value.hint}"

    where = f"the {stash.description}"
    assert told(lambda: stash.append([B], 3)) == (
        f"can't commit to {where} at time 3: its upper is 6, so time 3 is complete;"
        " read the upper again; if the commit still makes sense, commit it at 6"
    )
    assert told(lambda: stash.append([B], 9)) == (
        f"can't commit to {where} at time 9: its upper is 6, and a commit is at the upper;"
        " commit at 6; if the stash was at 9 before, an older state of it was restored"
    )
    assert told(lambda: stash.append([B], 6, upper=6)) == (
        f"a commit at time 6 can't move the upper to 6: the new upper must be from 7 to {MAX_TIME + 1}; "
    )
    assert told(lambda: stash.append([B], -2)) == f"a commit at time -2: times are from 0 to {MAX_TIME}; "
    assert told(lambda: list(stash.changes(4))) == (
        "changes from time 4 on are not readable: since is 4, and compaction may have merged earlier times;"
        " read the changes from 5 on, or the rows at 4 or later"
    )
    assert told(lambda: stash.hold("h", 2)) == (
        "time 2 can't be held: since is 4, and earlier times are no longer readable; hold 4 or later"
    )
    assert told(lambda: stash.allow_compaction(6)) == (
        "since can't move to 6: the upper is 6; give a time from 0 to 5"
    )


@pytest.mark.parametrize("at", [-1, MAX_TIME + 1])
def test_a_time_that_no_commit_can_have(stash: Stash, at: int) -> None:
    with pytest.raises(BadInput, match="time"):
        stash.append([A], at)


def test_diffs_that_overflow_are_told(stash: Stash) -> None:
    most = A._replace(diff=(1 << 63) - 1)
    stash.append([most], 0)
    stash.append([most], 1)
    with pytest.raises(DiffOverflow):
        list(stash.rows(1))
    assert contents(stash, 0) == {A[:3]: (1 << 63) - 1}


def test_for_reading_only(stash: Stash, stash_url: str) -> None:
    stash.append([A], 0)
    with open_stash(stash_url, create=True, read_only=True) as reader:
        assert contents(reader, 0) == {A[:3]: 1}
        for write in (
            lambda: reader.append([B], 1),
            lambda: reader.allow_compaction(0),
            lambda: reader.hold("a", 0),
            lambda: reader.release("a"),
            lambda: reader.consolidate(),
        ):
            with pytest.raises(NotWritable) as raised:
                write()
            assert "open it for writing" in raised.value.hint


def test_what_is_missing_stays_missing_for_readers(stash_url: str) -> None:
    for read_only in (False, True):
        with pytest.raises(NoLocation) as raised:
            open_stash(stash_url, read_only=read_only)
        assert "\n" not in str(raised.value)
    with open_stash(stash_url, create=True) as stash:
        stash.append([A], 0)
    with open_stash(stash_url) as stash:
        assert contents(stash, 0) == {A[:3]: 1}
