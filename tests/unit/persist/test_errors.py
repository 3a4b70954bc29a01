"""What an error says to do next is in its traceback too, where nobody catches it."""

import pickle
import traceback

import pytest

from holdfast.errors import (
    AsOfNotYetAvailable,
    BadInput,
    CorruptBlob,
    HandleExpired,
    HoldfastError,
    LeaseLost,
    Overtaken,
)


@pytest.mark.parametrize(
    "error",
    [
        BadInput("no", hint="do this"),
        HandleExpired("gone"),
        CorruptBlob("k", "1", "2"),
        CorruptBlob("k", "1", "2", hint="another file"),
        LeaseLost("r1", 3, 7),
        Overtaken("c", 3, 7),
    ],
)
def test_a_traceback_ends_with_the_hint_of_an_error_once(error: HoldfastError) -> None:
    *_, message, hint = "".join(traceback.format_exception_only(error)).splitlines()
    assert message == f"holdfast.errors.{type(error).__name__}: {error}"
    assert hint == f"hint: {error.hint}"
    assert error.__notes__ == [hint]


def test_an_error_without_a_hint_is_one_line_and_one_of_another_process_the_same() -> None:
    assert traceback.format_exception_only(BadInput("no")) == ["holdfast.errors.BadInput: no\n"]
    copy = pickle.loads(pickle.dumps(BadInput("no", hint="do this")))
    assert (str(copy), copy.hint, copy.__notes__) == ("no", "do this", ["hint: do this"])


def test_nothing_earlier_is_told_to_be_read_where_nothing_was_written() -> None:
    assert AsOfNotYetAvailable(0, 0).hint == "wait until something is written"
    assert AsOfNotYetAvailable(5, 3).hint == "wait, or read at an earlier time"
