"""A database process that continuously writes a linked catalog through the library, and records the results.

Each write is an event of the audit log with a unique name. The event gets an id when it is written, so a
write that is made twice is there twice.
"""

import threading
from typing import Final, Self

from crash.oracle import Answer
from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Catalog, OpenMode
from holdfast.catalog.move.linked import LinkedCatalog
from holdfast.catalog.move.reopen import reopened
from holdfast.errors import (
    HoldfastError,
    Indeterminate,
    LinkedElsewhere,
    MigrationInProgress,
    NotSourceOfTruth,
)

_PAUSE_S: Final = 0.05
_LONGEST_WAIT_S: Final = 0.1
_FOR_EVER_S: Final = 1e9
_MOVED: Final = (MigrationInProgress, NotSourceOfTruth, LinkedElsewhere)
_WHO: Final = {"holder": "database", "purpose": "serving"}


def name_of(number: int) -> str:
    """What the event of a write is called."""
    return f"write-{number}"


class LibraryWriter:
    """Writes in a thread of its own until it is stopped; a context manager that stops it."""

    def __init__(self, catalog: LinkedCatalog) -> None:
        """Opens the catalog, which links its stores."""
        self._catalog = catalog
        self._lock = threading.Lock()
        self._answers: dict[int, Answer] = {}
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self.reopened = 0
        """How often a migration took the catalog from it."""
        self._open: Catalog = catalog.open(OpenMode.WRITABLE, **_WHO)
        self._thread = threading.Thread(target=self._write, name="library writer")
        self._thread.start()

    def answers(self) -> dict[int, Answer]:
        """What it was told of each write until now, NONE of one that is under way."""
        if self._error is not None:
            raise AssertionError("the writer can't go on") from self._error
        with self._lock:
            return dict(self._answers)

    def acknowledged(self) -> int:
        """How many of them are done."""
        return sum(answer is Answer.DONE for answer in self.answers().values())

    def _write(self) -> None:
        try:
            number = 0
            while not self._stop.wait(_PAUSE_S):
                number += 1
                self._note(number, Answer.NONE)
                self._note(number, self._attempt(number))
        except BaseException as error:  # noqa: BLE001 - told by `answers`
            self._error = error

    def _attempt(self, number: int) -> Answer:
        try:
            self._open.append_audit_event(
                pb.AUDIT_LOG_EVENT_TYPE_CREATE, pb.OBJECT_TYPE_TABLE, f"u{number}", name_of(number)
            )
        except Indeterminate:
            return Answer.UNKNOWN
        except _MOVED as error:
            self._reopen(error)
            return Answer.REFUSED
        return Answer.DONE

    def _reopen(self, error: HoldfastError) -> None:
        self._open.close()
        try:
            self._open = reopened(self._catalog, error, timeout_s=_FOR_EVER_S, sleep=self._sleep, **_WHO)
        except _StoppedError:
            return
        self.reopened += 1

    def _sleep(self, seconds: float) -> None:
        if self._stop.wait(min(seconds, _LONGEST_WAIT_S)):
            raise _StoppedError

    def _note(self, number: int, answer: Answer) -> None:
        with self._lock:
            self._answers[number] = answer

    def close(self) -> None:
        """Stop it."""
        self._stop.set()
        self._thread.join()
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _StoppedError(Exception):
    """Nobody wants the catalog open any more."""
