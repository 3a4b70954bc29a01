"""`holdfast copy`: between files and S3 with Postgres, and what it says."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.cli import main
from testbed.minio import Minio


def run(*arguments: str) -> Result:
    return CliRunner().invoke(
        main, ["copy", *arguments], env={"HOLDFAST_URL": None, "HOLDFAST_CONSENSUS_URL": None}
    )


@pytest.mark.s3
@pytest.mark.postgres
def test_a_location_goes_to_s3_and_postgres_and_back(
    tmp_path: Path, minio: Minio, bucket: str, postgres_url: str
) -> None:
    there = f"s3://{bucket}/tables?endpoint={minio.endpoint}"
    with holdfast.table(
        tmp_path / "a", "orders", columns={"id": "int64", "x": "string?"}, key="id"
    ) as orders:
        first = orders.append({"id": [1, 2]})
        last = orders.upsert({"id": [2, 3], "x": ["b", "c"]})
        wanted = [orders.read(time).sort_by("id") for time in (first, last)]
    ways = (
        ("--all", "--url", str(tmp_path / "a"), "--to", there, "--to-consensus", postgres_url),
        ("--all", "--url", there, "--consensus", postgres_url, "--to", str(tmp_path / "b")),
    )
    for words in ways:
        result = run(*words)
        assert result.exit_code == 0, result.output
        assert re.match(r"copied: orders \(.*\) with 3 rows and \d changes?; times from 0, ", result.stdout)
        assert result.stderr == "1 collection with 3 rows\n"
        assert "postgresql" not in result.output
    again = run(*words)
    assert again.stdout.startswith("up to date: orders")
    with holdfast.table(tmp_path / "b", "orders", mode="read") as back:
        assert [back.read(time).sort_by("id") for time in (first, last)] == wanted
        assert back.upper == last + 1
    with holdfast.table(tmp_path / "a", "orders") as orders:
        orders.delete([1])
    for words in ways:
        result = run(*words)
        assert result.exit_code == 0, result.output
        assert re.match(r"brought up to date: orders \(.*\) with 2 rows and ", result.stdout)
    with holdfast.table(tmp_path / "b", "orders", mode="read") as back:
        assert sorted(back.read()["id"].to_pylist()) == [2, 3]


def test_a_copy_that_makes_no_sense_is_refused_and_makes_no_location(tmp_path: Path) -> None:
    here, there = str(tmp_path / "a"), str(tmp_path / "b")
    with holdfast.table(here, "t", columns={"id": "int64"}):
        pass
    for words, said in (
        ((), "what is to be copied?"),
        (("t", "--all"), "what is to be copied?"),
        (("--all", "--as", "u"), "--as can't be used with --all"),
        (("nope",), "no collection has the id or name 'nope'"),
    ):
        result = run(*words, "--url", here, "--to", there)
        assert (result.exit_code, said in result.stderr) == (2, True), result.output
    assert "does not exist" in run("t", "--url", there, "--to", here).stderr
    assert not (tmp_path / "b").exists()
    assert run("t", "--url", here, "--to", here, "--as", "u").exit_code == 0
    assert [each.name for each in holdfast.list_tables(here)] == ["t", "u"]


def test_each_collection_that_is_refused_is_one_line(tmp_path: Path) -> None:
    here, there = str(tmp_path / "a"), str(tmp_path / "b")
    for name in ("mine", "orders", "taken"):
        with holdfast.table(here, name, columns={"id": "int64"}, retain="forever") as table:
            table.append({"id": [1]})
    with holdfast.table(there, "taken", columns={"id": "int64"}) as other:
        other.append({"id": [9]})
    words = ("--all", "--url", here, "--to", there)
    assert run(*words).exit_code == 1
    with holdfast.table(there, "mine") as copy:
        copy.append({"id": [7]})
    for name in ("mine", "orders"):
        with holdfast.table(here, name) as table:
            table.append({"id": [2, 3]})
    result = run(*words)
    assert result.exit_code == 1
    assert re.fullmatch(r"brought up to date: orders \(.*\) with 3 rows and .*\n", result.stdout)
    mine, taken, summary, hint = result.stderr.splitlines()
    assert re.match("not copied: mine: the copy 'mine' was written by others, .*; give a new copy", mine)
    assert re.match("not copied: taken: the target has a table 'taken', .*; give the copy another", taken)
    assert summary == "holdfast: 2 of 3 tables could not be copied: mine, taken"
    assert hint.startswith("  hint: correct what is wrong with each of them, and copy again")
    result = run(*words, "--json")
    assert result.exit_code == 1
    assert [each["name"] for each in json.loads(result.stdout)["copied"]] == ["orders"]
