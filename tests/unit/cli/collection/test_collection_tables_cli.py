"""`holdfast collection`: rows of every type in every format, changes by key, handovers and refusals."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.cli import main
from holdfast.collections import StorageController
from testbed.minio import Minio
from unit.collections.snapshots import snapshot

TYPES: dict[str, list[Any]] = {
    "bool": [True, False],
    **{f"int{bits}": [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": [0, 2**bits - 1] for bits in (8, 16, 32, 64)},
    "float32": [1.5, float("inf")],
    "float64": [0.1, float("-inf")],
    "string": ["", 'a,"b"\nNULL é'],
    "binary": [b"", b"\x00\xff,\n"],
    "date32": [date(1, 1, 1), date(9999, 12, 31)],
    "timestamp": [datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2025, 1, 2, 3, 4, 5)],  # noqa: DTZ001
    "timestamp_utc": [datetime(1969, 12, 31, 23, 59, 59, 1, UTC), datetime(2025, 1, 2, tzinfo=UTC)],
    "decimal128(38,10)": [Decimal("-1234567890123456789012345678.0123456789"), Decimal("0.1")],
}


class Shell:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file://{folder / 'location'}"

    def run(self, *arguments: str, stdin: bytes = b"") -> Result:
        return CliRunner().invoke(main, ["collection", *arguments, "--url", self.url], input=stdin)

    def out(self, *arguments: str, stdin: bytes = b"") -> str:
        result = self.run(*arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    def rows(self, name: str) -> list[dict[str, Any]]:
        lines = self.out("read", name, "--format", "json").splitlines()
        return sorted(map(json.loads, lines), key=str)

    def comments(self, name: str) -> dict[str, str | None]:
        columns = json.loads(self.out("describe", name, "--json"))["columns"]
        return {column["name"]: column["comment"] for column in columns}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def orders(shell: Shell) -> Shell:
    with holdfast.table(
        shell.url, "orders", columns={"id": "int64", "note": "string?"}, key="id", shards=2
    ) as table:
        table.append({"id": [1, 2, 3], "note": ["a", None, ""]})
    return shell


@pytest.mark.parametrize("form", ["csv", "json", "parquet", "arrow"])
def test_every_type_goes_through_every_format_and_back(shell: Shell, form: str) -> None:
    columns = {f"c{index}": f"{type_}?" for index, type_ in enumerate(TYPES)}
    data = {name: [*values, None] for name, values in zip(columns, TYPES.values(), strict=True)}
    with (
        holdfast.table(shell.url, "one", columns={"n": "int8", **columns}) as one,
        holdfast.table(shell.url, "two", columns={"n": "int8", **columns}) as two,
        holdfast.table(shell.url, "nan", columns={"x": "float64?"}) as nan,
    ):
        one.append({"n": [0, 1, 2], **data})
        nan.append({"x": [float("nan"), None]})
        file = str(shell.folder / f"rows.{form}")
        shell.out("read", "one", "--output", file)
        shell.out("write", "two", file)
        assert two.read().sort_by("n").equals(one.read().sort_by("n"))
        assert one.read().sort_by("n").to_pydict() == {"n": [0, 1, 2], **data}
        file = str(shell.folder / f"nan.{form}")
        shell.out("read", "nan", "--output", file)
        shell.out("write", "nan", file)
        counts = nan.counts().to_pylist()
        assert sorted((str(row["x"]), row["_diff"]) for row in counts) == [("None", 2), ("nan", 2)]


def test_rows_are_put_and_taken_by_key(orders: Shell) -> None:
    lines = b'{"id": 2, "note": "two"}\n\n{"id": 9}\n'
    orders.out("write", "orders", "-", "--format", "json", "--upsert", stdin=lines)
    orders.out("write", "orders", "-", "--format", "csv", "--delete", stdin=b"id,other\n1,x\n7,y\n")
    assert orders.rows("orders") == [
        {"id": 2, "note": "two"},
        {"id": 3, "note": ""},
        {"id": 9, "note": None},
    ]


def test_how_many_rows_are_really_deleted_is_told(orders: Shell) -> None:
    orders.out("write", "orders", "-", "--format", "csv", stdin=b"id,note\n3,again\n")
    for keys, told in (
        (b"id\n1\n3\n7\n7\n", "deleted 3 rows of 3 keys from orders, as of "),
        (b"id\n7\n", "deleted 0 rows of 1 key from orders, as of "),
        (b"id\n2\n", "deleted 1 row of 1 key from orders, as of "),
    ):
        result = orders.run("write", "orders", "-", "--format", "csv", "--delete", stdin=keys)
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr.startswith(told), result.stderr
    assert orders.rows("orders") == []


def test_a_name_that_is_taken_tells_whose_it_is(orders: Shell) -> None:
    (there,) = json.loads(orders.out("list", "--json"))
    result = orders.run("create", "orders", "--key", "id:int64")
    id_ = there["id"]
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        f"holdfast: the name 'orders' belongs to collection {id_}",
        f"  hint: choose another name, or use that one: see 'holdfast collection describe {id_}'",
    ]


def test_what_changed_is_told(orders: Shell) -> None:
    (fact,) = json.loads(orders.out("list", "--json"))
    before = str(fact["upper"] - 1)
    orders.out("write", "orders", "-", "--format", "csv", "--upsert", stdin=b"id,note\n2,two\n")
    upper = json.loads(orders.out("list", "--json"))[0]["upper"]
    changes = [
        json.loads(line)
        for line in orders.out("diff", "orders", "--from", before, "--format", "json").splitlines()
    ]
    assert sorted((row["note"] or "", row["_diff"]) for row in changes) == [("", -1), ("two", 1)]
    ends = ["--as-of", before, "--until", str(upper)]
    lines = orders.out("tail", "orders", *ends, "--format", "json", "--progress").splitlines()
    *told, progress = map(json.loads, lines)
    assert sorted((row["note"] or "", row["_time"], row["_diff"]) for row in told) == [
        ("", upper - 1, -1),
        ("two", upper - 1, 1),
    ]
    assert progress == {"progress": upper}
    assert len(orders.out("tail", "orders", *ends, "--format", "csv").splitlines()) == 3
    assert len(orders.out("tail", "orders", *ends, "--snapshot").splitlines()) == 6
    assert orders.out("tail", "orders", "--for", "0") == ""
    # However long the opening took.
    assert len(orders.out("tail", "orders", "--snapshot", "--for", "0").splitlines()) == 4
    orders.out("create", "never", "--key", "id:int64")
    assert orders.out("tail", "never", "--snapshot", "--for", "0") == ""


def test_a_handover_is_one_command_and_the_same_one_goes_on(orders: Shell) -> None:
    before = orders.rows("orders")
    assert "orders is r2 with 3 shards, from" in orders.out("handover", "orders", "--shards", "3")
    assert "orders is already r2 with 3 shards" in orders.out("handover", "orders", "--shards", "3")
    with holdfast.table(orders.url, "orders") as table:
        # What a process left that died after it had made the rendition.
        StorageController(table.client).renditions.create("orders", shards=1)
        table.append([{"id": 10, "note": "late"}])
    assert "orders is r3 with 1 shard, from" in orders.out("handover", "orders", "--shards", "1")
    assert orders.rows("orders") == sorted([*before, {"id": 10, "note": "late"}], key=str)
    told = json.loads(orders.out("describe", "orders", "--json"))
    assert [(each["id"], each["state"], len(each["shards"])) for each in told["renditions"]] == [
        ("r1", "Retired", 2),
        ("r2", "Retired", 3),
        ("r3", "Holding", 1),
    ]
    assert told["renditions"][2]["rows"] == 4
    assert told["history"][-1]["command"] == "hand_over"
    assert [each["purpose"] for each in told["holds"]] == ["retention"]
    text = orders.out("describe", "orders")
    assert "rendition r3" in text
    assert "hand over" in text
    assert "retention" in orders.out("holds", "orders")
    assert "waits: r1" in orders.out("advance", "orders")


def test_a_hold_that_nobody_comes_back_for_is_released(orders: Shell) -> None:
    with holdfast.table(orders.url, "orders") as table:
        controller = StorageController(table.client)
        controller.hold("orders", "report 7")
        controller.acquire_write("orders", "import")
    for purpose in ("retention", "report"):
        result = orders.run("release", "orders", purpose)
        assert result.exit_code == 2
        assert f"collection orders has no hold '{purpose}' that can be released" in result.stderr
    assert orders.out("release", "orders", "report 7") == "released 'report 7' on orders\n"
    assert orders.out("release", "orders", "import") == "released 'import' on orders\n"
    told = json.loads(orders.out("holds", "orders", "--json"))
    assert [each["purpose"] for each in told] == ["retention"]


def test_jobs_on_record_are_shown(orders: Shell) -> None:
    assert json.loads(orders.out("jobs", "orders", "--json")) == []
    with holdfast.table(orders.url, "orders") as table:
        controller = StorageController(table.client)
        of = controller.describe("orders").collection_id
        done = controller.start_job(of, "snapshot", "monday", spec={}, by="spark")
        controller.finish_job(done.job_id, 1, {"rows": 3})
        lost = controller.start_job(of, "hydrate", "r2", spec={})
        controller.fail_job(lost.job_id, 1, "no room\x1b[2J")
        controller.start_job(of, "batch", "load 7", spec={})
    told = {each["slot"]: each for each in json.loads(orders.out("jobs", "orders", "--json"))}
    assert {slot: each["state"] for slot, each in told.items()} == {
        "monday": "Done",
        "r2": "Failed",
        "load 7": "Running",
    }
    assert (told["monday"]["by"], told["monday"]["result"]) == ("spark", {"rows": 3})
    head, *lines = orders.out("jobs", "orders").splitlines()
    assert head.split() == ["JOB", "SLOT", "STATE", "ATTEMPT", "BY", "STARTED", "TOOK", "RESULT"]
    text = "\n".join(lines)
    assert "rows 3" in text
    assert "no room\\x1b[2J" in text
    assert orders.run("jobs", "nothing").exit_code != 0


def test_what_is_being_filled_is_given_up(orders: Shell) -> None:
    with holdfast.table(orders.url, "orders") as table:
        StorageController(table.client).renditions.create("orders", shards=1)
    assert "aborted rendition r2" in orders.out("handover", "orders", "--abort")
    assert orders.run("handover", "orders", "--abort").exit_code == 2
    assert "orders is r3" in orders.out("handover", "orders", "--shards", "1")


def test_columns_are_added(orders: Shell) -> None:
    assert "qty int32?" in orders.out("alter", "orders", "--add", "qty:int32?")
    orders.out("alter", "orders", "--type", "qty:int64?")
    orders.out("write", "orders", "-", "--format", "json", stdin=b'{"id": 5, "qty": 5000000000}\n')
    assert [row["qty"] for row in orders.rows("orders")] == [None, None, None, 5_000_000_000]


def test_columns_are_commented_on(orders: Shell) -> None:
    told = "Wer's ist: ✈\n2. Zeile"
    assert orders.out("comment", "orders", "id", told) == "orders: set the comment of id\n"
    orders.out("comment", "orders", "note", "free text")
    assert orders.comments("orders") == {"id": told, "note": "free text"}
    shown = orders.out("describe", "orders").splitlines()
    assert [line.split("  ")[-1] for line in shown if line.startswith(("COLUMN ", "id ", "note "))][-3:] == [
        "COMMENT",
        "Wer's ist: ✈\\n2. Zeile",
        "free text",
    ]
    assert any("comment columns" in line and "comments id" in line for line in shown)
    assert orders.out("comment", "orders", "note", "") == "orders: removed the comment of note\n"
    assert orders.comments("orders") == {"id": told, "note": None}


def test_a_collection_is_made_with_comments(shell: Shell) -> None:
    columns = ["--key", "id:int64", "--column", "at:timestamp"]
    shell.out("create", "trips", *columns, "--comment", "at:when: local time")
    assert shell.comments("trips") == {"id": None, "at": "when: local time"}
    refused = shell.run("create", "more", *columns, "--comment", "of:nothing")
    assert (refused.exit_code, "more has no column 'of'" in refused.stderr) == (2, True)
    assert "more" not in shell.out("list")


def test_a_collection_becomes_what_a_snapshot_has(shell: Shell) -> None:
    with holdfast.table(shell.url, "flights", columns={"id": "int64", "name": "string?"}, key="id") as table:
        first = table.append([{"id": 1, "name": "lost"}])
        snapshot(shell.folder / "kept", [(7, "a"), (8, None)])
        refused = shell.run("restore", "flights", str(shell.folder / "kept"))
        assert (refused.exit_code, "--yes" in refused.stderr) == (2, True)
        assert "restored, from" in shell.out("restore", "flights", str(shell.folder / "kept"), "--yes")
        table.upsert([{"id": 7, "name": "b"}])
        assert shell.rows("flights") == [{"id": 7, "name": "b"}, {"id": 8, "name": None}]
        assert table.read(first).to_pylist() == [{"id": 1, "name": "lost"}]


@pytest.mark.s3
def test_a_collection_becomes_what_a_snapshot_in_a_bucket_has(
    shell: Shell, minio: Minio, bucket: str
) -> None:
    with holdfast.table(shell.url, "flights", columns={"id": "int64", "name": "string?"}, key="id") as table:
        table.append([{"id": 1, "name": "lost"}])
        snapshot(shell.folder / "kept", [(7, "a"), (8, None)])
        for path in (shell.folder / "kept").iterdir():
            minio.client.upload_file(str(path), bucket, f"kept/{path.name}")
        place = f"s3://{bucket}/kept?endpoint={minio.endpoint}"
        missing = shell.run("restore", "flights", place.replace("/kept", "/lost"), "--yes")
        assert (missing.exit_code, "never finished" in missing.stderr) == (2, True)
        assert "restored, from" in shell.out("restore", "flights", place, "--yes")
        assert shell.rows("flights") == [{"id": 7, "name": "a"}, {"id": 8, "name": None}]


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["write", "orders", "-"], b"", "format of standard input"),
        (["write", "orders", "-", "--format", "json"], b'{"id": 1x}', "line 1 is not JSON"),
        (["write", "orders", "-", "--format", "json"], b"[1]", "line 1 is not a JSON object"),
        (["write", "orders", "-", "--format", "json"], b'{"id": "x"}', "line 1: 'x' is a string"),
        (["write", "orders", "-", "--format", "json"], b'{"idd": 1}', "'idd' is not in the schema"),
        (
            ["write", "orders", "-", "--format", "csv"],
            b"id,note\nx,1\n",
            "column 'id': 'x' in line 2 is not a valid int64",
        ),
        (["write", "orders", "-", "--format", "csv"], b"note\na\n", "'id' is missing"),
        (
            ["write", "orders", "-", "--format", "csv", "--upsert"],
            b"id,note\n1,a\n1,b\n",
            "input: table orders: ",
        ),
        (["write", "orders", "-", "--format", "csv", "--upsert"], b"id,note\n1,a\n1,b\n", "more than once"),
        (["write", "orders", "x.csv", "--upsert", "--delete"], b"", "can't be used together"),
        (["write", "orders", "x.csv", "--upsert", "--at", "5"], b"", "--upsert chooses the time"),
        (["handover", "orders"], b"", "which rendition of orders?"),
        (["handover", "orders", "--shards", "0"], b"", "shards is 0"),
        (["handover", "orders", "--shards", "2", "--hash", "x"], b"", "hash column 'x'"),
        (["handover", "orders", "--rendition", "r9"], b"", "no rendition r9"),
        (["handover", "orders", "--abort", "--shards", "2"], b"", "--abort can be used only"),
        (["handover", "nope", "--shards", "2"], b"", "no collection"),
        (["alter", "orders"], b"", "nothing to alter"),
        (["alter", "orders", "--add", "qty:int32"], b"", "must be nullable"),
        (["alter", "orders", "--add", "note:int32?"], b"", "already has a column 'note'"),
        (["alter", "orders", "--type", "id:int8"], b"", "a key column keeps its type"),
        (["comment", "orders", "nope", "x"], b"", "no column 'nope' to comment on (id, note)"),
        (["comment", "orders", "id", "\x1b[31m"], b"", "without control characters"),
        (["comment", "nope", "id", "x"], b"", "no collection"),
        (["diff", "orders", "--from", "9", "--to", "3"], b"", "forward in time"),
        (["tail", "orders", "--progress"], b"", "--progress needs"),
        (["restore", "orders", "nothing-there", "--yes"], b"", "nothing-there"),
    ],
)
def test_what_is_wrong_is_one_line(orders: Shell, arguments: list[str], stdin: bytes, message: str) -> None:
    before = orders.out("list", "--json")
    result = orders.run(*arguments, stdin=stdin)
    first, *hints = result.stderr.splitlines()
    assert (result.exit_code, message in first, result.stdout) == (2, True, ""), result.stderr
    assert all(hint.startswith("  hint: ") for hint in hints)
    assert orders.out("list", "--json") == before
