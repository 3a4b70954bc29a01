"""Opens a linked catalog again after the store of a handle stopped being the source of truth."""

import time
from collections.abc import Callable
from typing import Any, Literal, overload

from holdfast.catalog.interfaces import Catalog, OpenableCatalog, OpenMode, ReadOnlyCatalog
from holdfast.errors import (
    FencedByMove,
    HoldfastError,
    LinkedElsewhere,
    MigrationInProgress,
    NotSourceOfTruth,
)

_FIRST_PAUSE_S = 0.1
_LAST_PAUSE_S = 1.0


@overload
def reopened(
    catalog: OpenableCatalog,
    error: HoldfastError,
    *,
    mode: Literal[OpenMode.WRITABLE] = ...,
    timeout_s: float = ...,
    sleep: Callable[[float], None] = ...,
    **options: Any,
) -> Catalog: ...


@overload
def reopened(
    catalog: OpenableCatalog,
    error: HoldfastError,
    *,
    mode: Literal[OpenMode.READ_ONLY],
    timeout_s: float = ...,
    sleep: Callable[[float], None] = ...,
    **options: Any,
) -> ReadOnlyCatalog: ...


def reopened(
    catalog: OpenableCatalog,
    error: HoldfastError,
    *,
    mode: Literal[OpenMode.WRITABLE, OpenMode.READ_ONLY] = OpenMode.WRITABLE,
    timeout_s: float = 600.0,
    sleep: Callable[[float], None] = time.sleep,
    **options: Any,
) -> ReadOnlyCatalog:
    """Open `catalog` (a `linked_catalog`) again where it is now, after a handle of it raised `error`.

    `options` are those of `OpenableCatalog.open`. Waits while a migration is running, for at most `timeout_s`
    seconds, and then raises `MigrationInProgress`. If `error` is not from a migration, raises it again: a
    process that is `Fenced` was overtaken, and must stop. A process that is `FencedByMove` was not: the
    catalog has come back, and nobody else has opened it.
    """
    if not isinstance(error, MigrationInProgress | NotSourceOfTruth | LinkedElsewhere | FencedByMove):
        raise error
    pause, waited = _FIRST_PAUSE_S, 0.0
    while True:
        try:
            return catalog.open(mode, **options)
        except MigrationInProgress:
            if waited >= timeout_s:
                raise
        pause = min(pause, timeout_s - waited)
        sleep(pause)
        waited += pause
        pause = min(2 * pause, _LAST_PAUSE_S)
