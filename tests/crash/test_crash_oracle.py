"""The judge of the crash tests finds every planted fault, and accepts sound histories."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from crash.oracle import Answer, Attempt, Row, Seen, attempts_in, judge

ATTEMPTS = [
    Attempt("a", 1, 1, Answer.DONE),
    Attempt("b", 7, 1, Answer.REFUSED),
    Attempt("b", 7, 2, Answer.DONE),
    Attempt("a", 2, 3, Answer.UNKNOWN),
    Attempt("b", 8, 3, Answer.NONE),
    Attempt("a", 3, 4, Answer.NONE),
]


def heard(*appends: tuple[str, int, int]) -> list[tuple[Row, int, int]]:
    """Two rows for each (writer, number, time)."""
    return [(Row(writer, number, row, 2), time, 1) for writer, number, time in appends for row in range(2)]


def seen(*appends: tuple[str, int, int], upper: int) -> Seen:
    updates = heard(*appends)
    return Seen(updates, {row: 1 for row, _, _ in updates}, upper)


SOUND = seen(("a", 1, 1), ("b", 7, 2), ("b", 8, 3), upper=4)


@pytest.mark.parametrize(
    "sound",
    [
        SOUND,
        seen(("a", 1, 1), ("b", 7, 2), upper=3),
        seen(("a", 1, 1), ("b", 7, 2), ("a", 2, 3), ("a", 3, 4), upper=5),
    ],
    ids=["the killed one landed", "neither landed", "the unknown ones landed"],
)
def test_what_can_be_is_let_go(sound: Seen) -> None:
    judge(ATTEMPTS, sound)


@pytest.mark.parametrize(
    ("crime", "verdict"),
    [
        (lambda s: seen(("a", 1, 1), upper=2), "was acknowledged and is not there"),
        (lambda s: seen(("b", 7, 1), ("a", 1, 2), upper=3), "is not where it was acknowledged"),
        (lambda s: seen(("a", 1, 1), ("b", 7, 2), ("x", 1, 3), upper=4), "nobody tried it"),
        (lambda s: seen(("a", 1, 1), ("b", 7, 2), upper=4), "do not tile"),
        (lambda s: seen(("a", 1, 1), ("b", 7, 3), upper=4), "do not tile"),
        (lambda s: replace(s, heard=[*s.heard, s.heard[0]]), "2 times"),
        (lambda s: replace(s, heard=s.heard[1:]), "disagree"),
        (lambda s: replace(s, contents={**s.contents, Row("a", 1, 0, 2): 2}), "disagree"),
        (lambda s: Seen(s.heard[1:], dict(list(s.contents.items())[1:]), 4), "in part"),
        (lambda s: replace(s, heard=[(r, t, -d) for r, t, d in s.heard]), "another count"),
    ],
)
def test_what_must_not_be_is_convicted(crime: Callable[[Seen], Seen], verdict: str) -> None:
    with pytest.raises(AssertionError, match=verdict):
        judge(ATTEMPTS, crime(SOUND))


def test_an_append_that_was_refused_must_not_be_there() -> None:
    refused = [Attempt("a", 1, 1, Answer.REFUSED)]
    with pytest.raises(AssertionError, match="was refused and is there"):
        judge(refused, seen(("a", 1, 1), upper=2))


def test_a_journal_tells_the_attempts_of_a_life() -> None:
    lines = [
        '{"open": 1}\n',
        '{"try": 5, "at": 1}\n',
        '{"answer": "refused"}\n',
        '{"try": 5, "at": 3}\n',
        '{"answer": "done"}\n',
        '{"try": 6, "at": 4}\n',
        '{"answer": "do',
    ]
    assert list(attempts_in("a", lines)) == [
        Attempt("a", 5, 1, Answer.REFUSED),
        Attempt("a", 5, 3, Answer.DONE),
        Attempt("a", 6, 4, Answer.NONE),
    ]
