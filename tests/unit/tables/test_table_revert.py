"""Reverting a table to an earlier time: through changed columns and handovers, and while others write."""

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

import holdfast
from holdfast.cli import main
from holdfast.collections import StorageController
from holdfast.errors import AsOfNotYetAvailable
from holdfast.persist import PersistClient
from unit.collections.stores import Stores


@pytest.fixture
def stores() -> Stores:
    return Stores()


@pytest.fixture
def client(stores: Stores) -> Iterator[PersistClient]:
    with stores.open(inline_max_bytes=0) as opened:
        yield opened


def rows(table: holdfast.Table, as_of: int | None = None) -> list[dict[str, object]]:
    assert set(table.counts(as_of)["_diff"].to_pylist()) <= {1}
    return table.read(as_of).sort_by("id").to_pylist()


def test_a_table_has_the_rows_of_an_earlier_time_again(client: PersistClient) -> None:
    columns = {"id": "int64", "a": "string", "b": "string?"}
    table = holdfast.table(client, "t", columns=columns, key="id", shards=2)
    first = table.append([{"id": 1, "a": "x", "b": "gone"}, {"id": 2, "a": "y"}, {"id": 3, "a": "z"}])
    table.delete([1])
    table.append([{"id": 6, "a": "u", "b": "to be removed with its value"}])
    table.rename_column("a", "name")
    table.drop_column("b")
    table.alter(add={"n": "int32?"})
    second = table.upsert([{"id": 3, "name": "w", "n": 1}, {"id": 4, "name": "v"}])
    controller = StorageController(client)
    controller.renditions.create("t", shards=3, rendition_id="r2")
    controller.hydrate("t", "r2")
    controller.renditions.hand_over("t", "r2")

    at = table.revert(first)
    again = [{"id": 1, "name": "x", "n": None}, {"id": 2, "name": "y", "n": None}]
    assert rows(table) == [*again, {"id": 3, "name": "z", "n": None}]
    # The value of the dropped column is that of the row, so that times before the drop agree.
    assert table.diff(first).num_rows == 0
    assert rows(table, first)[0]["b"] == "gone"

    # Earlier times are as before, so a revert can be reverted.
    table.revert(second)
    assert rows(table) == rows(table, second) == rows(table, at - 1)
    assert table.history()["what"].to_pylist()[-2:] == ["revert", "revert"]
    upper = table.upper
    with pytest.raises(AsOfNotYetAvailable):
        table.revert(upper)
    assert table.upper == upper


def test_what_another_process_wrote_meanwhile_is_reverted_too(stores: Stores, client: PersistClient) -> None:
    orders = holdfast.table(client, "orders", columns={"id": "int64"}, key="id")
    lines = holdfast.table(client, "lines", columns={"line": "int64"})
    before = holdfast.write({orders: [{"id": 1}], lines: [{"line": 1}, {"line": 1}]})
    orders.append([{"id": 2}])  # so this process knows the position of its next append
    with stores.open() as other, holdfast.table(other, "orders") as theirs:
        theirs.append([{"id": 3}])
        holdfast.write({holdfast.table(other, "lines"): [{"line": 1}, {"line": 2}]})
    at = holdfast.write({orders: holdfast.Revert(before), lines: holdfast.Revert(before)})
    assert orders.read()["id"].to_pylist() == [1]
    assert lines.counts().to_pylist() == [{"line": 1, "_diff": 2}]
    # Nothing is left to revert.
    assert orders.revert(before) > at
    assert orders.diff(at).num_rows == 0


def test_the_command_reverts_and_says_what_is_wrong(tmp_path: object) -> None:
    url = f"file://{tmp_path}"
    with holdfast.table(url, "orders", columns={"id": "int64"}, key="id") as orders:
        before = orders.append([{"id": 1}])
        orders.append([{"id": 2}])

        def run(time: object) -> tuple[int, str]:
            given = ["collection", "revert", "orders", "--to", str(time), "--url", url]
            result = CliRunner().invoke(main, given)
            return result.exit_code, result.stderr

        code, said = run("2999-01-01")
        assert code == 1
        assert "holdfast history orders" in said
        assert orders.count() == 2
        code, said = run(before)
        assert code == 0
        assert f"orders has the rows as of {before} " in said
        assert orders.read()["id"].to_pylist() == [1]
