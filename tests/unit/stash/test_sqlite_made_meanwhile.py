"""A SQLite file that another process is just creating is never taken for something else."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import NoLocation
from holdfast.persist.stores.sqlite import SqliteConsensus
from holdfast.stash import open_stash

Opening = Callable[[Path, bool], Any]


def stash_at(path: Path, create: bool) -> Any:
    return open_stash(f"sqlite://{path}", create=create, read_only=not create)


def consensus_at(path: Path, create: bool) -> Any:
    return SqliteConsensus(path, create=create, read_only=not create)


@pytest.mark.parametrize("opening", [stash_at, consensus_at])
@pytest.mark.parametrize("part", ["application_id", "user_version", "sqlite_schema"])
def test_a_file_that_is_made_while_it_is_looked_at(
    opening: Opening, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.sqlite"
    path.touch()
    connect = sqlite3.connect
    makers: list[threading.Thread] = []

    def make(statement: str) -> None:
        if part in statement and not makers:
            maker = threading.Thread(target=lambda: opening(path, True).close())
            makers.append(maker)
            maker.start()
            maker.join(0.5)  # it may have to wait for the one who looks

    def watched(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        if threading.current_thread() is threading.main_thread():
            connection.set_trace_callback(make)
        return connection

    monkeypatch.setattr(sqlite3, "connect", watched)
    with suppress(NoLocation):
        opening(path, False).close()
    (maker,) = makers
    maker.join()
    opening(path, False).close()
