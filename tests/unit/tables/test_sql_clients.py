"""Queries by the URL of a local location share a client for a while, which never shows what is not there."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import BadInput, NoLocation
from holdfast.persist.stores import Location
from holdfast.tables import opening
from holdfast.tables.opened import OpenTable
from testbed.forking import in_child

QUERY = "SELECT list(n ORDER BY n) AS n FROM t"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The URLs of the clients that are opened."""
    urls: list[str] = []
    opens = opening.open_client

    def counted(url: str, *given: Any, **options: Any) -> Any:
        urls.append(url)
        return opens(url, *given, **options)

    # Tables that other tests left open don't count.
    monkeypatch.setattr(opening, "_places", {})
    monkeypatch.setattr(opening, "open_client", counted)
    # The machine may be slow.
    monkeypatch.setattr(opening, "IDLE_S", 600.0)
    yield urls
    opening._close_idle(0)


def made(folder: Path, *numbers: int) -> Path:
    with holdfast.table(folder, "t", columns={"n": "int64"}) as table:
        table.append({"n": numbers})
    return folder


def numbers(folder: Path) -> list[int]:
    with holdfast.sql(folder, QUERY) as found:
        row: list[int] = found.read().to_pylist()[0]["n"]
        return row


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_queries_share_a_client_and_see_what_others_write(tmp_path: Path, opened: list[str]) -> None:
    made(tmp_path, 1)
    assert numbers(tmp_path) == [1]
    program = "import sys, holdfast; holdfast.table(sys.argv[1], 't').append({'n': [2]})"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=100)
    assert numbers(tmp_path) == [1, 2]
    with holdfast.table(tmp_path, "u", columns={"n": "int64"}) as other:
        other.append({"n": [5]})
    with holdfast.sql(tmp_path, "SELECT sum(n)::BIGINT AS n FROM (FROM t UNION ALL FROM u)") as found:
        assert found.read().to_pylist() == [{"n": 8}]
    assert len(opened) == 3


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_a_location_that_was_made_again_is_opened_again(tmp_path: Path, opened: list[str], how: str) -> None:
    folder = made(tmp_path / "a", 1)
    assert numbers(folder) == [1]
    if how == "removed":
        shutil.rmtree(folder)
    else:
        folder.rename(tmp_path / "b")
    with pytest.raises(NoLocation):
        holdfast.sql(folder, QUERY)
    made(folder, 7, 8)
    assert numbers(folder) == [7, 8]
    if how == "moved":
        assert numbers(tmp_path / "b") == [1]
        # An exchange of two locations.
        folder.rename(tmp_path / "c")
        (tmp_path / "b").rename(folder)
        assert numbers(folder) == [1]


def test_a_restored_copy_is_opened_again(tmp_path: Path, opened: list[str]) -> None:
    folder = made(tmp_path / "a", 1)
    shutil.copytree(folder, tmp_path / "copy")
    made(folder, 2)
    assert numbers(folder) == [1, 2]
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    assert numbers(folder) == [1]


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_an_open_result_does_not_keep_its_location_from_being_opened_again(
    tmp_path: Path, opened: list[str], how: str
) -> None:
    folder = made(tmp_path / "a", 1)
    held = holdfast.sql(folder, QUERY)
    if how == "removed":
        shutil.rmtree(folder)
    else:
        folder.rename(tmp_path / "b")
    made(folder, 7, 8)
    assert numbers(folder) == [7, 8]
    held.close()
    # Its end closed only its own client.
    count = len(opened)
    assert numbers(folder) == [7, 8]
    assert len(opened) == count


def test_a_client_whose_location_seemed_gone_is_closed(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, 1)
    numbers(tmp_path)
    files = open_files()
    there = Location.is_there
    answers = [False]
    monkeypatch.setattr(Location, "is_there", lambda self: answers.pop() if answers else there(self))
    assert numbers(tmp_path) == [1]
    assert len(opened) == 3
    assert open_files() <= files


def test_an_interrupted_close_leaves_the_client(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, 1)
    held = holdfast.sql(tmp_path, QUERY)

    def interrupted(_: OpenTable) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(OpenTable, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            held.close()
    assert [place.tables for place in opening._places.values()] == [0]


def test_a_client_ends_when_it_is_idle_or_a_query_failed(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_files()
    made(tmp_path, 1)
    numbers(tmp_path)
    with pytest.raises(BadInput):
        holdfast.sql(tmp_path, "SELECT x FROM t")
    assert not opening._places
    monkeypatch.setattr(opening, "IDLE_S", 0.05)
    monkeypatch.setattr(opening, "_timer", None)
    numbers(tmp_path)
    assert opening._places
    wait_until(lambda: not opening._places)
    wait_until(lambda: open_files() <= files)


def test_few_clients_stay_and_only_those_that_are_small(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [made(tmp_path / str(number), number) for number in range(6)]
    for folder in folders:
        numbers(folder)
    assert {key[0] for key in opening._places} == {folder.as_uri() for folder in folders[2:]}
    monkeypatch.setattr(opening, "_MOST_BYTES", -1)
    numbers(folders[5])
    assert len(opening._places) == 3
    # Others than local ones don't stay.
    holdfast.table("memory://queries", "t", columns={"n": "int64"}).close()
    with holdfast.sql("memory://queries", "SELECT count(*) AS n FROM t") as found:
        assert found.read().to_pylist() == [{"n": 0}]
    assert len(opening._places) == 3


def test_a_forked_child_opens_its_own_client(tmp_path: Path, opened: list[str]) -> None:
    made(tmp_path, 1)
    assert numbers(tmp_path) == [1]

    def query() -> None:
        assert numbers(tmp_path) == [1]
        assert numbers(tmp_path) == [1]
        assert len(opened) == 3

    assert in_child({"query": query}) == {"query": ""}
    assert numbers(tmp_path) == [1]
    assert len(opened) == 2
