"""`holdfast collection`: reads at times after the last write, writes far ahead, and tables that are ahead."""

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.cli import main
from holdfast.collections import StorageController
from holdfast.errors import AsOfNotYetAvailable
from holdfast.persist import PersistClient

HOUR = 3_600_000


class Orders:
    """A table in files. Its one row was written an hour ago."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file://{folder / 'location'}"
        self.now = int(time.time() * 1000)
        self.written = self.now - HOUR
        holdfast.table(self.url, "orders", columns={"id": "int64", "note": "string?"}, key=["id"]).close()
        with PersistClient.open(self.url) as client:
            writer = StorageController(client).writer("orders", purpose="test")
            writer.append([{"id": 1, "note": "a"}], 0, self.written + 1)
            writer.append([{"id": 1, "note": "a", "_diff": -1}], self.written + 1, self.written + 2)
            writer.append([{"id": 2, "note": "b"}], self.written + 2, self.written + 3)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["collection", *arguments, "--url", self.url])

    def out(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def fails(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code in (1, 2), result.output
        assert "Traceback" not in result.output
        return result.stderr

    def upper(self) -> int:
        found: int = json.loads(self.out("describe", "orders", "--json"))["upper"]
        return found

    def file(self, text: str, name: str = "rows.csv") -> str:
        (self.folder / name).write_text(text)
        return str(self.folder / name)


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    return Orders(tmp_path)


def date(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def test_a_read_completes_the_collection_up_to_a_minute_ago(orders: Orders) -> None:
    half_past = date(orders.now - HOUR // 2)
    assert json.loads(orders.out("read", "orders", "--as-of", half_past, "--format", "json"))["id"] == 2
    assert 0 <= orders.upper() - (orders.now - 60_000) < 60_000
    error = orders.fails("read", "orders", "--as-of", str(int(time.time() * 1000) - 1000))
    assert "is not complete at" in error
    assert "its latest complete time is" in error
    assert "--or-earlier" in error
    error = orders.fails("read", "orders", "--as-of", date(orders.now + 3 * HOUR))
    assert "after the store's clock" in error


def test_processes_that_read_make_one_empty_commit_a_minute(orders: Orders) -> None:
    program = [sys.executable, "-c", "from holdfast.cli import main; main()", "count", "orders", "--url"]
    uppers, errors = [], []
    for _ in range(3):
        at = str(int(time.time() * 1000) - 60_001)
        command = [*program, orders.url, "--as-of", at]
        errors.append(subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stderr)
        uppers.append(orders.upper())
    assert errors[0] == ""
    assert all("reads seal at most once a minute" in error for error in errors[1:])
    assert len(set(uppers)) == 1
    with (
        holdfast.table(orders.url, "orders") as table,
        pytest.raises(AsOfNotYetAvailable, match="reads seal at most once a minute"),
    ):
        table.read(as_of=uppers[0])


def test_a_difference_completes_it_too(orders: Orders) -> None:
    to = date(orders.now - HOUR // 2)
    rows = orders.out("diff", "orders", "--from", str(orders.written), "--to", to, "--format", "json")
    assert sorted((each["id"], each["_diff"]) for each in map(json.loads, rows.splitlines())) == [
        (1, -1),
        (2, 1),
    ]
    assert orders.upper() > orders.now - HOUR // 2
    assert orders.out("diff", "orders", "--from", to, "--format", "json") == ""


def test_the_time_before_is_shown_and_nothing_is_written(orders: Orders) -> None:
    upper = orders.upper()
    later = date(orders.now - HOUR // 2)
    result = orders.run("read", "orders", "--as-of", later, "--or-earlier", "--format", "json")
    assert json.loads(result.stdout)["id"] == 2
    assert result.stderr == f"as of {upper - 1} ({date(upper - 1)})\n"
    result = orders.run("diff", "orders", "--from", str(orders.written), "--to", later, "--or-earlier")
    assert f"as of {upper - 1} " in result.stderr
    assert f"as of {orders.written} " in result.stderr
    assert orders.upper() == upper


def test_a_query_completes_nothing_and_says_what_does(orders: Orders) -> None:
    later = date(orders.now - HOUR // 2)
    query = ("sql", f"select count(*) as n from as_of('orders', '{later}')")
    assert "first read table orders at this time with such a client, as 'holdfast read'" in orders.fails(
        *query
    )
    orders.out("read", "orders", "--as-of", later)
    assert orders.out(*query).split() == ["n", "1"]


def test_a_tail_and_other_units_complete_nothing(orders: Orders) -> None:
    upper = orders.upper()
    orders.out("tail", "orders", "--as-of", date(orders.now - HOUR // 2), "--for", "0")
    assert "after the store's clock" in orders.fails("tail", "orders", "--as-of", date(orders.now + 3 * HOUR))
    for command in ("read", "tail"):
        error = orders.fails(command, "orders", "--as-of", str(orders.written // 1000))
        assert "looks like seconds" in error
        assert f"give {orders.written // 1000 * 1000} (" in error
    assert orders.upper() == upper


def test_a_folder_that_can_not_be_written_is_not_completed(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> PersistClient:
        raise holdfast.UnusablePath("can't write here")

    monkeypatch.setattr("holdfast.cli.location.open_to_write", refused)
    upper = orders.upper()
    error = orders.fails("read", "orders", "--as-of", date(orders.now - HOUR // 2))
    assert f"its latest complete time is {upper - 1} " in error
    assert "only a client that may write" in error


def test_a_write_that_is_too_late_is_told_who_sealed(orders: Orders) -> None:
    orders.out("read", "orders", "--as-of", date(orders.now - HOUR // 2))
    file = orders.file("id,note\n3,c\n")
    error = orders.fails("write", "orders", file, "--at", str(orders.now - HOUR // 2))
    assert "rows can't be added at" in error
    assert "; a read by host " in error
    assert f"sealed it up to {orders.upper()} (" in error
    error = orders.fails("write", "orders", file, "--at", str(orders.now // 1000))
    assert "looks like seconds" in error


def test_a_write_far_ahead_needs_permission(orders: Orders) -> None:
    upper = orders.upper()
    ahead = str(orders.now + 48 * HOUR)
    plain, timed = orders.file("id,note\n3,c\n"), orders.file(f"id,note,_time\n4,d,{ahead}\n", "timed.csv")
    for wrong in (
        ("write", "orders", plain, "--at", ahead),
        ("write", "orders", plain, "--new-upper", ahead),
        ("write", "orders", timed),
    ):
        error = orders.fails(*wrong)
        assert "48 h ahead of the store's clock" in error or "2 d ahead of the store's clock" in error
        assert "--far-ahead" in error
    assert "looks like microseconds" in orders.fails("write", "orders", plain, "--at", str(orders.now * 1000))
    assert orders.upper() == upper
    assert "leave out --at" in orders.fails("write", "orders", plain, "--upsert", "--far-ahead")
    assert "AHEAD" not in orders.out("describe", "orders")
    orders.out("write", "orders", timed, "--far-ahead")
    assert orders.upper() == int(ahead) + 1


def test_a_table_whose_time_was_moved_is_seen_and_repaired(orders: Orders) -> None:
    """The steps of docs/how-to/use-tables.md."""
    wrong = orders.file("id,note\n3,c\n")
    orders.out("write", "orders", wrong, "--at", str(orders.now + 72 * HOUR), "--far-ahead")
    assert "AHEAD of the store's clock by 3 d" in orders.out("describe", "orders")
    facts = json.loads(orders.out("describe", "orders", "--json"))
    assert 71 * HOUR < facts["ahead_ms"] <= 72 * HOUR
    repairs = (
        "'holdfast read orders --output FILE', then 'holdfast create NEW --from FILE' makes a collection"
    )
    shown = orders.run("list")
    assert shown.stderr.startswith(f"orders is AHEAD of the store's clock by 3 d: {repairs}")
    (listed,) = json.loads(orders.out("list", "--json"))
    assert 71 * HOUR < listed["ahead_ms"] <= 72 * HOUR
    refused = orders.fails(
        "write", "orders", orders.file("id,note\n9,z\n", "now.csv"), "--at", str(orders.now)
    )
    assert "rows can't be added at" in refused
    assert "; its time is AHEAD of the store's clock by 3 d" in refused
    assert f"hint: {repairs}" in refused
    # It can still be used, but its rows get times that are ahead.
    orders.out("write", "orders", orders.file("id,note\n4,d\n", "more.csv"))

    saved = str(orders.folder / "orders.parquet")
    orders.out("read", "orders", "--output", saved)
    orders.out("create", "copy", "--from", saved, "--key", "id")
    orders.out("drop", "orders", "--yes")
    orders.out("rename", "copy", "orders")
    assert "AHEAD" not in orders.out("describe", "orders")
    assert orders.run("list").stderr == ""
    assert json.loads(orders.out("list", "--json"))[0]["ahead_ms"] is None
    assert abs(orders.upper() - orders.now) < HOUR
    rows = orders.out("read", "orders", "--format", "json").splitlines()
    assert sorted(json.loads(each)["id"] for each in rows) == [2, 3, 4]


def test_a_table_without_writes_reads_as_empty_at_past_times_and_future_times_are_refused(
    orders: Orders,
) -> None:
    with holdfast.table(orders.url, "none", columns={"id": "int64"}) as none:
        assert orders.out("read", "none", "--as-of", "2026-01-01") == "id\n"
        assert orders.out("read", "none", "--as-of", "2026-01-01", "--or-earlier") == "id\n"
        assert orders.out("diff", "none", "--from", "2026-01-01", "--to", "2026-01-02") == "id  _diff\n"
        assert "must go forward" in orders.fails("diff", "none", "--from", "2026-01-02", "--to", "2026-01-01")
        refused = orders.fails("export", "none", str(orders.folder / "none"), "--as-of", "2026-01-01")
        assert "can't be exported: nothing has been written yet" in refused
        assert "nothing has been written yet" in orders.fails("read", "none", "--as-of", "2999-01-01")
        assert none.upper == 0


def test_a_restored_table_has_the_times_of_the_clock(orders: Orders, tmp_path: Path) -> None:
    folder = str(tmp_path / "export")
    orders.out("export", "orders", folder)
    assert "copy keeps its history: 7d" in orders.out("restore", "copy", folder, "--create", "--yes")
    with holdfast.table(orders.url, "copy", mode="read") as copy:
        assert copy.upper > orders.now - 60_000
        assert copy.read()["id"].to_pylist() == [2]
    # A restore that was interrupted after the creation continues in the same way.
    holdfast.table(orders.url, "begun", columns={"id": "int64", "note": "string?"}, key=["id"]).close()
    orders.out("restore", "begun", folder, "--create", "--yes")
    with holdfast.table(orders.url, "begun", mode="read") as begun:
        assert begun.upper > orders.now - 60_000


@pytest.mark.parametrize("change", [(), ("--upsert",)])
def test_an_error_about_a_column_names_the_file_and_the_table(
    orders: Orders, change: tuple[str, ...]
) -> None:
    file = orders.file("note\na\n")
    upper = orders.upper()
    said = orders.fails("write", "orders", file, *change)
    assert f"{file}: table orders: column 'id' is missing (given: note)" in said
    assert orders.upper() == upper
