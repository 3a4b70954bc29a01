"""`holdfast sql`: queries on the collections of a location."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.cli import main

QUERY = "SELECT n, sum(count) AS total FROM orders JOIN lines USING (id) GROUP BY n ORDER BY n"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = (tmp_path_factory.mktemp("sql") / "location").as_uri()
    with (
        holdfast.table(url, "orders", columns={"id": "int64", "n": "string"}, key="id") as orders,
        holdfast.table(url, "lines", columns={"id": "int64", "count": "int64"}, key="id") as lines,
        holdfast.table(url, "none", columns={"id": "int64"}),
    ):
        orders.append([{"id": 1, "n": "a"}, {"id": 2, "n": "b"}])
        lines.append([{"id": 1, "count": 3}, {"id": 2, "count": 4}])
    return url


def sql(url: str, *arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(main, ["sql", "--url", url, *arguments], input=stdin)


def test_rows_in_every_format_and_the_times_on_stderr(url: str, tmp_path: Path) -> None:
    shown = sql(url, QUERY)
    assert shown.exit_code == 0
    assert shown.stdout.split() == ["n", "total", "a", "3", "b", "4"]
    assert [line.split()[:3] for line in shown.stderr.splitlines()] == [
        ["orders", "as", "of"],
        ["lines", "as", "of"],
    ]
    assert sql(url, "-", "--format", "csv", stdin=QUERY).stdout == '"n","total"\n"a",3\n"b",4\n'
    lines = sql(url, QUERY, "--format", "json", "--limit", "1").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"n": "a", "total": 3}]
    (tmp_path / "report.sql").write_text(QUERY)
    file = tmp_path / "report.parquet"
    assert sql(url, f"@{tmp_path / 'report.sql'}", "--output", str(file)).exit_code == 0
    assert pq.read_table(file).to_pylist() == [{"n": "a", "total": 3}, {"n": "b", "total": 4}]
    assert [line.split()[0] for line in sql(url, "describe orders").stdout.splitlines()] == [
        *("column_name", "id", "n"),
    ]
    # A plan is shown as it is drawn.
    plan = sql(url, "explain select id from orders where id > 7")
    assert "orders as of" in plan.stderr
    assert len(plan.stdout.splitlines()) > 3
    assert "\\n" not in plan.stdout
    # Both tables have a column id, and no format may lose one.
    both = "SELECT * FROM orders o JOIN lines l ON o.id = l.id WHERE n > 'a;--ü'; -- note ;"
    assert sql(url, both).stdout.split() == ["id", "n", "id_1", "count", "2", "b", "2", "4"]
    assert json.loads(sql(url, both, "--format", "json").stdout) == {"id": 2, "n": "b", "id_1": 2, "count": 4}
    empty = sql(url, "SELECT * FROM none")
    assert (empty.stdout, empty.stderr, empty.exit_code) == ("id\n", "none is empty\n", 0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["DELETE FROM orders"], "holdfast: sql: the query is not one SELECT"),
        (["SELECT * FROM nothing"], "hint: the tables are: lines, none, orders"),
        (["SELECT * FROM orders", "--as-of", "2099-01-01"], "hint: give or_earlier"),
        (["@/nothing/here.sql"], "can't read the query from /nothing/here.sql"),
    ],
)
def test_a_refusal_is_one_line_and_a_hint(url: str, arguments: list[str], told: str) -> None:
    refused = sql(url, *arguments)
    assert refused.exit_code == (1 if "--as-of" in arguments else 2)
    assert told in refused.stderr
    assert len(refused.stderr.splitlines()) <= 2
    assert "orders as of" in sql(url, "SELECT * FROM orders", "--as-of", "2099-01-01", "--or-earlier").stderr


def test_a_sum_is_a_whole_number_in_every_format(url: str, tmp_path: Path) -> None:
    query = "SELECT sum(count) AS n, [sum(count)] AS l, sum(count * 2305843009213693951) AS big FROM lines"
    big = 7 * 2305843009213693951
    assert sql(url, query).stdout.splitlines()[1].split() == ["7", "[7]", str(big)]
    assert sql(url, query, "--format", "csv").stdout.splitlines()[1] == f'7,"[7]",{big}'
    assert sql(url, query, "--format", "json").stdout == f'{{"n": 7, "l": [7], "big": {big}}}\n'
    file = tmp_path / "sum.parquet"
    assert sql(url, query, "--output", str(file)).exit_code == 0
    assert pq.read_table(file)["big"].to_pylist() == [big]
