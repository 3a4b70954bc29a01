"""The catalog's commands as processes: a terminal that asks, an interrupt, a closed pipe."""

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Catalog, Object, OpenMode
from holdfast.catalog.objects.registry import SETTINGS
from holdfast.errors import Fenced
from unit.cli.catalogs import Place, make_place

HOLDFAST = str(Path(sys.executable).parent / "holdfast")
EDIT = ("edit", "settings", '{"name": "n"}', '{"value": "1"}')
DEADLINE_S = 120


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = make_place("stash in a file", tmp_path, request)
    assert made.run("init").exit_code == 0
    yield made
    made.close()


def wait_until_it_reads(pid: int) -> None:
    """Wait until a process sleeps. After its question, it sleeps only in the read of the answer."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "RD":
        threading.Event().wait(0.01)


def at_a_terminal(
    place: Place,
    command: tuple[str, ...],
    answer: bytes | None,
    meanwhile: Callable[[], object] = lambda: None,
) -> tuple[int, str]:
    """The exit code, and what the terminal showed, of a command that asks; None interrupts it.

    `meanwhile` is done between the question and the answer.
    """
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        [HOLDFAST, "catalog", *command, *place.options],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        # A shell may have started the tests with interrupts ignored, which is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(theirs)
    shown = b""
    answered = False
    while True:
        try:
            more = os.read(ours, 4096)
        except OSError:
            break
        if not more:
            break
        shown += more
        if not answered and b"[y/N]: " in shown:
            meanwhile()
            if answer is None:
                # An interrupt just before the process reads has no effect until the next one. But a second
                # interrupt may kill the process while it ends.
                wait_until_it_reads(done.pid)
                done.send_signal(signal.SIGINT)
            else:
                os.write(ours, answer)
            answered = True
    os.close(ours)
    return done.wait(DEADLINE_S), shown.decode()


def test_a_terminal_is_asked_before_anybody_is_fenced(place: Place) -> None:
    before = place.stored()
    code, shown = at_a_terminal(place, EDIT, b"n\n")
    assert (code, "Aborted!" in shown) == (1, True)
    assert shown.startswith("fencing every process that writes to catalog ")
    assert place.stored() == before
    code, shown = at_a_terminal(place, EDIT, b"y\n")
    assert (code, "inserted" in shown) == (0, True)
    code, shown = at_a_terminal(place, ("fence", "--at-least", "9", "--yes"), b"")
    assert (code, "[y/N]" in shown) == (0, False)
    assert place.run("epoch").stdout == "9\n"


def test_a_fence_above_all_shuts_out_also_who_took_over_since_it_looked(place: Place) -> None:
    took: list[Catalog] = []

    def take_over() -> None:
        took.append(place.openable().open(OpenMode.WRITABLE, holder="db", purpose="is faster"))

    code, shown = at_a_terminal(place, ("fence", "--above", "0"), b"y\n", take_over)
    (faster,) = took
    epoch = faster.fence_token().epoch
    assert (code, f"-> epoch {epoch + 1} of generation 0" in shown) == (0, True)
    with pytest.raises(Fenced):
        faster.confirm_leadership()
    faster.close()


def test_a_pipe_that_ends_early_is_no_error(place: Place) -> None:
    with place.openable().open(OpenMode.WRITABLE, holder="db", purpose="fills") as catalog:
        value = pb.SettingValue(value="x" * 1000)
        catalog.set_objects(SETTINGS, [Object(pb.SettingKey(name=f"{n}"), value) for n in range(1000)])
    dump = subprocess.Popen(
        [HOLDFAST, "catalog", "dump", *place.options], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert dump.stdout is not None
    assert dump.stderr is not None
    assert os.read(dump.stdout.fileno(), 1) == b"{"
    dump.stdout.close()
    with dump.stderr:
        assert dump.stderr.read() == b""
    dump.wait(DEADLINE_S)


def test_an_interrupt_at_the_question_changes_nothing(place: Place) -> None:
    before = place.stored()
    code, shown = at_a_terminal(place, EDIT, None)
    assert (code, shown.split()[-1]) == (1, "Aborted!")
    assert "Traceback" not in shown
    assert place.stored() == before
