"""`holdfast catalog upgrade-check` gives an answer and an exit code, and changes no byte."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Catalog, Object, OpenMode
from holdfast.catalog.objects.codec import Row, RowUpdate, encode
from holdfast.catalog.objects.registry import CONFIGS, DATABASES, OBJECT_TYPES, SETTINGS, ObjectType
from holdfast.catalog.stores.persist import catalog_shard_id
from holdfast.catalog.version import CATALOG_VERSION, MIN_VERSION
from holdfast.persist.state.codec import decode_diff
from unit.cli.catalogs import ORG, WRITER, PersistPlace, Place, make_place

EVENT_S = 120.0
SIZES = "--cluster-replica-sizes"


@pytest.fixture
def ours(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PersistPlace]:
    """An initialized catalog in memory, to meddle with."""
    made = make_place("persist in memory", tmp_path, request)
    assert isinstance(made, PersistPlace)
    made.openable().initialize(holder="db", purpose="a test")
    yield made
    made.close()


def opened(place: Place) -> Catalog:
    return place.openable().open(OpenMode.WRITABLE, holder="db", purpose="a database that runs")


def change(catalog: Catalog, number: int) -> None:
    catalog.set_objects(SETTINGS, [Object(pb.SettingKey(name="n"), pb.SettingValue(value=str(number)))])


def meddle(place: PersistPlace, *updates: RowUpdate) -> None:
    store = place.behind()
    store.append(updates, store.upper())


def told(result: Result, code: int) -> str:
    """The one line of an error."""
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    first, *hints = result.stderr.splitlines()
    assert len(hints) <= 1
    return first


def test_beside_a_writer_between_two_commits_not_a_byte_changes(place: Place) -> None:
    catalog = opened(place)
    change(catalog, 1)
    before = place.stored()
    result = place.run("upgrade-check", SIZES, '["1"]')
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"is at version {CATALOG_VERSION}" in result.stdout
    assert place.stored() == before
    epoch = catalog.fence_token().epoch
    change(catalog, 2)
    assert place.run("epoch").stdout == f"{epoch}\n"


def test_beside_a_running_writer_all_that_is_logged_is_the_writers(place: Place) -> None:
    catalog = opened(place)
    change(catalog, -1)
    before, log = contents(place), Log(place)
    ending, committed = threading.Event(), threading.Condition()
    count = 0

    def commit() -> None:
        nonlocal count
        while not ending.is_set():
            change(catalog, count)
            with committed:
                count += 1
                committed.notify_all()

    def wait_for(commits: int) -> None:
        with committed:
            assert committed.wait_for(lambda: count >= commits, EVENT_S)

    writer = threading.Thread(target=commit)
    writer.start()
    try:
        for _ in range(3):
            wait_for(count + 1)
            assert place.run("upgrade-check").exit_code == 0
        wait_for(count + 1)
    finally:
        ending.set()
        writer.join()
    assert contents(place) == before
    log.check()


def contents(place: Place) -> dict[str, Any]:
    """What is there but for the objects that the writer changes."""
    found: dict[str, Any] = json.loads(place.dump())
    assert found.pop("settings")
    return found


class Log:
    """The log of persist, which says who wrote what; of other places it knows nothing."""

    def __init__(self, place: Place) -> None:
        self._consensus = place.client().location.consensus if isinstance(place, PersistPlace) else None
        self._before = self._heads()

    def check(self) -> None:
        """All that came since is of the writer, in the log of the catalog."""
        if self._consensus is None:
            return
        shard_id = catalog_shard_id(ORG)
        now = self._heads()
        assert {key for key in now if now[key] != self._before.get(key)} == {shard_id}
        first = self._before[shard_id] + 1
        logged = self._consensus.scan(shard_id, first, 100_000)
        assert [entry.seqno for entry in logged] == list(range(first, now[shard_id] + 1))
        assert {decode_diff(entry.data, shard_id).hostname for entry in logged} == {WRITER}

    def _heads(self) -> dict[str, int]:
        if self._consensus is None:
            return {}
        keys = list(self._consensus.list_keys())
        return {key: entry.seqno for key, entry in self._consensus.heads(keys).items()}


@pytest.mark.parametrize("collection", OBJECT_TYPES.values(), ids=str)
def test_a_row_of_any_type_that_does_not_decode_is_a_no(
    ours: PersistPlace, collection: ObjectType[Any, Any]
) -> None:
    assert ours.run("upgrade-check").exit_code == 0
    meddle(ours, RowUpdate(Row(collection.kind.tag, b"\xff\xff"), 1))
    assert "is corrupt" in told(ours.run("upgrade-check"), 1)


def test_two_objects_that_share_a_name_are_a_no(ours: PersistPlace) -> None:
    value = pb.DatabaseValue(name="holdfast")
    meddle(ours, RowUpdate(encode(DATABASES, pb.DatabaseKey(id=pb.ObjectId(user=77)), value), 1))
    assert "a unique name" in told(ours.run("upgrade-check"), 1)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (CATALOG_VERSION + 1, f"this Holdfast knows versions up to {CATALOG_VERSION}"),
        (MIN_VERSION - 1, "upgrades from"),
    ],
)
def test_a_version_out_of_reach_is_a_no(ours: PersistPlace, version: int, message: str) -> None:
    key = pb.ConfigKey(key="user_version")
    meddle(
        ours,
        RowUpdate(encode(CONFIGS, key, pb.ConfigValue(value=CATALOG_VERSION)), -1),
        RowUpdate(encode(CONFIGS, key, pb.ConfigValue(value=version)), 1),
    )
    assert message in told(ours.run("upgrade-check"), 1)


def test_a_catalog_that_is_not_initialized_is_a_no(place: Place) -> None:
    if isinstance(place, PersistPlace):
        told(place.run("upgrade-check"), 3)
        place.client()
    before = place.stored()
    assert "is not initialized" in told(place.run("upgrade-check"), 1)
    assert place.stored() == before


@pytest.mark.parametrize("given", ['["1", "2"]', '{"1": {"cpu": 1}, "2": {}}', "@{file}", "-"])
def test_sizes_that_there_are(ours: PersistPlace, given: str, tmp_path: Path) -> None:
    (tmp_path / "sizes.json").write_text('["1"]')
    sizes = given.replace("{file}", str(tmp_path / "sizes.json"))
    assert ours.run("upgrade-check", SIZES, sizes, text='["1", "3"]').exit_code == 0


def test_a_size_that_there_is_not_is_a_no_that_names_the_replica(ours: PersistPlace) -> None:
    message = told(ours.run("upgrade-check", SIZES, json.dumps(["2", "3"])), 1)
    assert "cluster default has size '1', cluster replica default.r1 has size '1'; " in message
    assert message.endswith("the sizes that there are: '2', '3'")


@pytest.mark.parametrize(
    "given", ["1", "", "[]", "{}", "[1]", '"1"', "null", "[", '["1",]', "[" * 100_000, "@/nowhere/sizes"]
)
def test_sizes_that_are_no_list_are_bad_input(ours: PersistPlace, given: str) -> None:
    assert "sizes" in told(ours.run("upgrade-check", SIZES, given), 2)
