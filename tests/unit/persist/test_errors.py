"""An uncaught error shows its hint in the traceback."""

import copy
import inspect
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import (
    AsOfNotYetAvailable,
    BadInput,
    CorruptBlob,
    HandleExpired,
    HoldfastError,
    LeaseLost,
    NotWritable,
    Overtaken,
    UpperMismatch,
)
from holdfast.persist import PersistClient, Schema
from holdfast.persist.stores import Put

# A value for each parameter of an error's `__init__`, by what the annotation begins with.
VALUES = {"str": "x", "int": 3, "object": ("token", 3), "Sequence": ["a", "b"], "Mapping": {"s1": 3}}


def kinds(kind: type[HoldfastError] = HoldfastError) -> list[type[HoldfastError]]:
    """All classes of errors that the library has, as far as they are imported.

    Those of the operator stay in its process, and a run of all tests imports them too.
    """
    found = [kind, *(each for sub in kind.__subclasses__() for each in kinds(sub))]
    return [each for each in found if each.__module__.startswith("holdfast.")]


def made(kind: type[HoldfastError]) -> HoldfastError:
    """An error of a class, with every parameter given."""
    given: dict[str, object] = {}
    for parameter in inspect.signature(kind).parameters.values():
        (given[parameter.name],) = (
            value for name, value in VALUES.items() if _annotation(parameter).startswith(name)
        )
    return kind(**given)  # type: ignore[arg-type]


def _annotation(parameter: inspect.Parameter) -> str:
    return str(getattr(parameter.annotation, "__name__", parameter.annotation)).rpartition(".")[2]


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))]
)
def test_a_copy_of_an_error_is_the_same(
    kind: type[HoldfastError], copied: Callable[[HoldfastError], HoldfastError]
) -> None:
    error = made(kind)
    error.add_note("in step 3")
    found = copied(error)
    assert type(found) is kind
    assert (str(found), found.args, found.hint) == (str(error), error.args, error.hint)
    assert vars(found) == vars(error)
    assert traceback.format_exception_only(found) == traceback.format_exception_only(error)
    found.add_note("in step 4")
    assert error.__notes__[-1] == "in step 3"


@pytest.mark.parametrize("start", ["spawn", "fork"])
@pytest.mark.long
def test_an_error_of_a_worker_reaches_who_called_it(start: str) -> None:
    program = f"""
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from holdfast.errors import UpperMismatch
from unit.persist.test_errors import fail
if __name__ == "__main__":
    context = multiprocessing.get_context({start!r})
    with context.Pool(1) as pool:
        try:
            pool.map(fail, [3])
        except UpperMismatch as error:
            print(error.actual, error.hint)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        error = pool.submit(fail, 4).exception()
        print(type(error).__name__, error.actual, error.hint)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    hint = "read the upper again and decide whether the write still makes sense"
    assert done.stdout.splitlines() == [f"3 {hint}", f"UpperMismatch 4 {hint}"], done.stderr


def fail(upper: int) -> None:
    raise UpperMismatch(1, upper, shard_id="s1")


@pytest.mark.parametrize(
    "error",
    [
        BadInput("no", hint="do this"),
        HandleExpired("gone"),
        CorruptBlob("k", "1", "2"),
        CorruptBlob("k", "1", "2", hint="another file"),
        CorruptBlob.missing("k", "the log names it"),
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
    other = pickle.loads(pickle.dumps(BadInput("no", hint="do this")))
    assert (str(other), other.hint, other.__notes__) == ("no", "do this", ["hint: do this"])


def test_an_object_that_is_gone_is_missing_and_not_corrupt() -> None:
    error = CorruptBlob.missing("k", "the log names it", hint="put it back")
    for each in (error, error.again(), pickle.loads(pickle.dumps(error))):
        assert str(each) == "k is missing: the log names it"
        assert (each.key, each.actual, each.hint) == ("k", "nothing", "put it back")
        assert each.__notes__ == ["hint: put it back"]


def test_a_store_that_was_opened_for_reading_says_how_to_write(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/location"
    PersistClient.open(url).close()
    with PersistClient.open(url, mode="read") as client:
        for write in (
            lambda: client.location.blob.put("k", b""),
            lambda: client.location.consensus.compare_and_set([Put("k", 1, b"")]),
            lambda: client.writer(client.new_shard_id(), Schema.of({"k": "int64"}), purpose="test"),
            lambda: client.create_or_load("orders", Schema.of({"k": "int64"})),
        ):
            with pytest.raises(NotWritable) as raised:
                write()
            assert any(each in raised.value.hint for each in ("open it for writing", "mode 'write'"))


def test_nothing_earlier_is_told_to_be_read_where_nothing_was_written() -> None:
    assert AsOfNotYetAvailable(0, 0).hint == "wait until something is written"
    assert AsOfNotYetAvailable(5, 3).hint == "wait, or read at an earlier time"
