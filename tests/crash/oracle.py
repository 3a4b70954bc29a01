"""Checks killed writers: compares their journals with the contents of the shard.

A writer notes each attempt before the call and each result after it. So at most its last attempt has no
result. Every append moves the upper by one and has at least one row, so the times of an intact shard have no
gaps.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Answer(StrEnum):
    """What a writer was told of an attempt."""

    DONE = "done"
    REFUSED = "refused"
    """It certainly did not happen."""
    UNKNOWN = "unknown"
    """It may have happened."""
    NONE = "none"
    """The writer was killed first."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call: append `number` of a writer at time `at`."""

    writer: str
    number: int
    at: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Row:
    """One row that a reader was given; an append has `rows` of them."""

    writer: str
    number: int
    row: int
    rows: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What the readers say: the updates of a listen from the beginning, a last snapshot, and the upper."""

    heard: Sequence[tuple[Row, int, int]]
    """Row, time, diff."""
    contents: Mapping[Row, int]
    upper: int


def attempts_in(writer: str, journal: Iterable[str]) -> Iterator[Attempt]:
    """The attempts in the journal of one life; a torn last line counts for nothing."""
    number = at = -1
    is_open = False
    for line in journal:
        if not line.endswith("\n"):
            break
        note: dict[str, Any] = json.loads(line)
        if "try" in note:
            assert not is_open, f"writer {writer} tried again without an answer"
            number, at, is_open = note["try"], note["at"], True
        elif "answer" in note:
            yield Attempt(writer, number, at, Answer(note["answer"]))
            is_open = False
    if is_open:
        yield Attempt(writer, number, at, Answer.NONE)


def judge(attempts: Sequence[Attempt], seen: Seen, *, tiles: bool = True) -> None:
    """Raise `AssertionError` unless what is there is what was promised, once.

    Appends tile the times; what is written to be sealed need not: any number of writes has the same time.
    """
    heard = Counter(row for row, _, _ in seen.heard)
    twice = [row for row, times in heard.items() if times > 1]
    assert not twice, f"a listener heard {twice[0]} {heard[twice[0]]} times"
    assert all(diff == 1 for _, _, diff in seen.heard), "an update has another count than was written"
    assert dict(heard) == dict(seen.contents), "the listener and the snapshot disagree"

    found: dict[tuple[str, int], set[int]] = {}
    pieces: Counter[tuple[str, int]] = Counter()
    rows: dict[tuple[str, int], int] = {}
    for row, time, _ in seen.heard:
        append = (row.writer, row.number)
        found.setdefault(append, set()).add(time)
        pieces[append] += 1
        rows[append] = row.rows
    torn = [append for append in found if pieces[append] != rows[append] or len(found[append]) != 1]
    assert not torn, f"append {torn[0]} is there in part, or at two times"
    at = {append: time for append, (time,) in found.items()}
    assert not tiles or sorted(at.values()) == list(range(1, seen.upper)), (
        "the times of the appends do not tile"
    )
    assert all(time < seen.upper for time in at.values()), "an update is at a time that is not complete"

    by_append: dict[tuple[str, int], list[Attempt]] = {}
    for attempt in attempts:
        by_append.setdefault((attempt.writer, attempt.number), []).append(attempt)
    foreign = at.keys() - by_append.keys()
    assert not foreign, f"append {foreign} is there, and nobody tried it"
    for append, tried in by_append.items():
        done = [attempt.at for attempt in tried if attempt.answer is Answer.DONE]
        assert len(done) <= 1, f"append {append} was acknowledged twice"
        assert not done or append in at, f"append {append} was acknowledged and is not there"
        assert not done or at[append] == done[0], f"append {append} is not where it was acknowledged"
        open_ = [attempt.at for attempt in tried if attempt.answer in (Answer.UNKNOWN, Answer.NONE)]
        known = append not in at or at[append] in (*done, *open_)
        assert known, f"append {append} was refused and is there"
