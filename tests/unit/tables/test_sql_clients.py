"""Queries by the URL of a local location share a client for a while, which never shows what is not there."""

import gc
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import BadInput, HoldfastError, NoLocation, StorageError, StoreUnreachable
from holdfast.persist.stores import Location
from holdfast.tables import opening, queries, shared_clients
from holdfast.tables.dataset import TableDataset
from holdfast.tables.duckdb_files import PartFiles, Served, served
from holdfast.tables.opened import OpenTable
from testbed.forking import in_child

QUERY = "SELECT list(n ORDER BY n) AS n FROM t"
TOTAL = "SELECT sum(n) AS n FROM t"
PART = 70_000


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The URLs of the clients that are opened."""
    urls: list[str] = []
    opens = opening.open_client

    def counted(url: str, *given: Any, **options: Any) -> Any:
        urls.append(url)
        return opens(url, *given, **options)

    # Tables that other tests left open don't count.
    monkeypatch.setattr(shared_clients, "_current", {})
    monkeypatch.setattr(shared_clients, "_gone", set())
    monkeypatch.setattr(opening, "open_client", counted)
    # The machine may be slow.
    monkeypatch.setattr(shared_clients, "IDLE_S", 600.0)
    yield urls
    shared_clients.close_idle(0)


def made(folder: Path, *numbers: int) -> Path:
    with holdfast.table(folder, "t", columns={"n": "int64"}) as table:
        table.append({"n": numbers})
    return folder


def numbers(folder: Path) -> list[int]:
    with holdfast.sql(folder, QUERY) as found:
        row: list[int] = found.read().to_pylist()[0]["n"]
        return row


def large(folder: Path, parts: int) -> int:
    """A table of several parts that DuckDB decodes itself. Returns the sum of its numbers."""
    with holdfast.table(folder, "t", columns={"n": "int64"}) as table:
        for part in range(parts):
            table.append({"n": range(part * PART, (part + 1) * PART)})
    return parts * PART * (parts * PART - 1) // 2


def total(folder: Path) -> int:
    with holdfast.sql(folder, TOTAL) as found:
        return int(found.read().to_pylist()[0]["n"])


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


def test_a_copy_that_was_restored_over_the_files_is_opened_again(tmp_path: Path, opened: list[str]) -> None:
    folder = made(tmp_path / "a", 1)
    shutil.copytree(folder, tmp_path / "copy")
    made(folder, 2)
    made(folder, 3)
    assert numbers(folder) == [1, 2, 3]
    shutil.copytree(tmp_path / "copy", folder, dirs_exist_ok=True)
    assert numbers(folder) == [1]


def test_a_user_does_not_get_what_another_one_opened(tmp_path: Path, opened: list[str]) -> None:
    if os.geteuid():
        pytest.skip("only root can become another user")
    made(tmp_path, 1)
    assert numbers(tmp_path) == [1]
    tmp_path.chmod(0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(HoldfastError):
            numbers(tmp_path)
    finally:
        os.seteuid(0)
    count = len(opened)
    assert numbers(tmp_path) == [1]
    assert len(opened) == count


def test_threads_that_come_at_once_open_one_client(tmp_path: Path, opened: list[str]) -> None:
    made(tmp_path, 1)
    found: list[list[int]] = []
    threads = [threading.Thread(target=lambda: found.append(numbers(tmp_path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [[1]] * 8
    assert len(opened) == 2


@pytest.mark.parametrize("call", ["is_there", "open_client"])
def test_a_disk_that_hangs_stops_no_query_of_another_location(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    bad, good = made(tmp_path / "bad", 1), made(tmp_path / "good", 2)
    numbers(bad)
    ends = threading.Event()
    there, opens = Location.is_there, opening.open_client

    def hangs(location: Location) -> bool:
        if str(bad) in location.blob.description:
            ends.wait(60)
        return there(location)

    def hangs_to_open(url: str, *given: Any, **options: Any) -> Any:
        if url == bad.as_uri():
            ends.wait(60)
        return opens(url, *given, **options)

    if call == "is_there":
        monkeypatch.setattr(Location, "is_there", hangs)
    else:
        shared_clients.close_idle(0)
        monkeypatch.setattr(opening, "open_client", hangs_to_open)
    found: list[list[int]] = []
    hanging = threading.Thread(target=lambda: found.append(numbers(bad)))
    other = threading.Thread(target=lambda: found.append(numbers(good)))
    try:
        hanging.start()
        time.sleep(0.1)
        other.start()
        other.join(20)
        assert found == [[2]]
    finally:
        ends.set()
        hanging.join(60)
    assert found == [[2], [1]]


@pytest.mark.parametrize("what", ["a query", "a table"])
def test_a_moved_location_is_refused_while_it_is_used_and_the_error_names_the_user(
    tmp_path: Path, opened: list[str], what: str
) -> None:
    folder = made(tmp_path / "a", 1)
    if what == "a query":
        held: holdfast.SqlResult | holdfast.Table = holdfast.sql(folder, QUERY)
        named = f"the result of the query {QUERY!r}"
    else:
        held = holdfast.table(folder, "t")
        assert held.upper
        named = "table 't'"
    folder.rename(tmp_path / "b")
    for _ in range(2):
        with pytest.raises(StoreUnreachable, match="moved") as caught:
            numbers(tmp_path / "b")
        assert f"{folder}/consensus.sqlite" in str(caught.value)
        assert caught.value.hint == f"close {named}, and try again"
    # A table can't release its hold any more, and leaves the location nevertheless.
    with pytest.raises(StorageError) if what == "a table" else nullcontext():
        held.close()
    assert numbers(tmp_path / "b") == [1]


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
    assert [each.is_used for each in shared_clients._all()] == [False]


def test_ctrl_c_after_a_query_has_entered_leaves_the_client(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path / "a", 1)
    enters = shared_clients.use_of

    def interrupted(*given: Any) -> None:
        enters(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(opening, "use_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            holdfast.sql(folder, QUERY)
    gc.collect()
    assert [each.is_used for each in shared_clients._all()] == [False]
    assert numbers(folder) == [1]
    assert len(opened) == 2


def test_a_result_that_nobody_closed_leaves_the_client(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, 1)
    files = open_files()
    for _ in range(3):
        holdfast.sql(tmp_path, QUERY).read()
        numbers(made(tmp_path / "other", 2))
        gc.collect()
    assert [each.is_used for each in shared_clients._all()] == [False, False]
    assert opened.count(tmp_path.as_uri()) == 2
    monkeypatch.setattr(shared_clients, "IDLE_S", 0.05)
    monkeypatch.setattr(shared_clients, "_timer", None)
    holdfast.sql(tmp_path, QUERY).read()
    wait_until(lambda: not shared_clients._all())
    wait_until(lambda: open_files() <= files)


def test_a_table_that_nobody_closed_keeps_its_client(tmp_path: Path, opened: list[str]) -> None:
    made(tmp_path, 1)
    client = holdfast.table(tmp_path, "t", mode="read").client
    gc.collect()
    assert numbers(tmp_path) == [1]
    shared_clients.close_idle(0)
    assert [info.name for info in holdfast.list_tables(client)] == ["t"]
    client.close()


@pytest.mark.parametrize("where", ["glob", "info", "_select", "scanner"])
def test_ctrl_c_in_what_duckdb_calls_is_a_keyboard_interrupt(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    expected = large(tmp_path, 2)
    if where == "scanner":
        monkeypatch.setattr(PartFiles, "room", 0)
    assert total(tmp_path) == expected

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PartFiles if where in ("glob", "info") else TableDataset, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            total(tmp_path)
    gc.collect()
    assert not served._files
    assert total(tmp_path) == expected


@pytest.mark.parametrize("where", ["_free_name", "end"])
def test_ctrl_c_gives_back_the_names_of_files(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    expected = large(tmp_path, 2)
    assert total(tmp_path) == expected
    does = getattr(PartFiles, where)
    calls: list[object] = []

    def interrupted(files: PartFiles, given: Any) -> Any:
        calls.append(given)
        if where == "end" or len(calls) == 2:
            calls.clear()
            raise KeyboardInterrupt
        return does(files, given)

    with monkeypatch.context() as patch:
        patch.setattr(PartFiles, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            total(tmp_path)
        calls.clear()
    gc.collect()
    assert not served._files
    assert total(tmp_path) == expected


def test_results_that_are_not_read_have_few_files_open(tmp_path: Path, opened: list[str]) -> None:
    expected = large(tmp_path, 3)
    assert total(tmp_path) == expected
    files = open_files()
    held = [holdfast.sql(tmp_path, TOTAL) for _ in range(40)]
    assert open_files() <= files + 3 * queries._MOST_BOUND
    assert {int(each.read().to_pylist()[0]["n"]) for each in held[::8]} == {expected}
    for each in held:
        each.close()
    assert open_files() <= files
    assert not served._files


def test_a_query_of_more_parts_than_the_process_may_open_streams_them(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = large(tmp_path, 3)
    used: list[int] = []
    serves = PartFiles.serve

    def counted(files: PartFiles, given: Sequence[Served]) -> list[str]:
        used.append(len(given))
        return serves(files, given)

    monkeypatch.setattr(PartFiles, "serve", counted)
    assert total(tmp_path) == expected
    assert set(used) == {3}
    used.clear()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4, 4))
    assert total(tmp_path) == expected
    with holdfast.table(tmp_path, "t", mode="read") as table:
        assert table.to_duckdb().sum("n").fetchall() == [(expected,)]
    assert not used


def test_a_client_ends_when_it_is_idle_or_a_query_failed(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_files()
    made(tmp_path, 1)
    numbers(tmp_path)
    with pytest.raises(BadInput):
        holdfast.sql(tmp_path, "SELECT x FROM t")
    assert not shared_clients._all()
    monkeypatch.setattr(shared_clients, "IDLE_S", 0.05)
    monkeypatch.setattr(shared_clients, "_timer", None)
    numbers(tmp_path)
    assert shared_clients._all()
    wait_until(lambda: not shared_clients._all())
    wait_until(lambda: open_files() <= files)


def test_few_clients_stay_and_only_those_that_are_small(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [made(tmp_path / str(number), number) for number in range(6)]
    for folder in folders:
        numbers(folder)
    assert {each.key.where for each in shared_clients._all()} == {folder.as_uri() for folder in folders[2:]}
    monkeypatch.setattr(shared_clients, "_MOST_BYTES", -1)
    numbers(folders[5])
    assert len(shared_clients._all()) == 3
    # Others than local ones don't stay.
    holdfast.table("memory://queries", "t", columns={"n": "int64"}).close()
    with holdfast.sql("memory://queries", "SELECT count(*) AS n FROM t") as found:
        assert found.read().to_pylist() == [{"n": 0}]
    assert len(shared_clients._all()) == 3


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
