"""Catalogs, collections and tables in a forked child of the process that opened them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.catalog import OpenMode, persist_catalog, shadow_catalog, stash_catalog
from holdfast.catalog.getters import Getters
from holdfast.catalog.handle import ReadOnlyHandle, WritableHandle
from holdfast.catalog.objects.registry import CONFIGS, OBJECT_TYPES, SETTINGS
from holdfast.catalog.shadow.handle import ShadowCatalog
from holdfast.catalog.subscription import StoreSubscription
from holdfast.collections import (
    CollectionListen,
    CollectionReader,
    CollectionSpec,
    CollectionWriter,
    StorageController,
)
from holdfast.collections.bulk import BulkAppend
from holdfast.collections.record.column_names import PLAIN_NAMES
from holdfast.collections.record.spec import Recipe
from holdfast.persist import PersistClient, Schema
from holdfast.tables import Table, Tail
from holdfast.tables.opened import OpenTable
from testbed.forking import in_child, locks_held, public_names

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

ORG = "00000000-0000-4000-8000-000000000007"
WHO = {"holder": "me", "purpose": "test"}
SCHEMA = Schema.of({"k": "int64"}, {"v": "string"})
ROW = [{"k": 1, "v": "x"}]
Calls = dict[str, Callable[[Any], object]]

READS: Calls = {
    "upper": lambda c: c.upper,
    "since": lambda c: c.since,
    "catalog_version": lambda c: c.catalog_version,
    "fence_token": lambda c: c.fence_token(),
    "objects": lambda c: c.objects(CONFIGS),
    "find": lambda c: c.find(SETTINGS, None),
    "stream": lambda c: list(c.stream(CONFIGS)),
    "snapshot": lambda c: c.snapshot(),
    "object_counts": lambda c: c.object_counts(),
    "sync": lambda c: c.sync(),
    "subscribe": lambda c: c.subscribe(),
    "dump": lambda c: c.dump(),
}
WRITES: Calls = {
    "transaction": lambda c: c.transaction(),
    "commit_transaction": lambda c: c.commit_transaction(None),
    "in_transaction": lambda c: c.in_transaction(lambda _: None),
    "confirm_leadership": lambda c: c.confirm_leadership(),
    "fence_guard": lambda c: c.fence_guard(),
    "dangerous_edit": lambda c: c.dangerous_edit(OBJECT_TYPES[6], None, None),
}


def _all_raise(handles: list[tuple[object, Calls]]) -> None:
    with locks_held(*(handle for handle, _ in handles)):
        calls = {
            f"{number} {type(handle).__name__}.{name}": lambda handle=handle, call=call: call(handle)  # type: ignore[misc]
            for number, (handle, of_handle) in enumerate(handles)
            for name, call in of_handle.items()
        }
        found = in_child(calls)
    assert found == dict.fromkeys(calls, "UsedAfterFork")


def _covers(kind: type, calls: Calls, *free: str) -> None:
    assert {name for name in calls if not name.startswith("_")} | set(free) == public_names(kind)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[PersistClient]:
    with PersistClient.open(f"file://{tmp_path}/location") as client:
        yield client


@pytest.fixture
def places(tmp_path: Path, client: PersistClient) -> dict[str, Any]:
    persist, stash = persist_catalog(client, ORG), stash_catalog(f"sqlite://{tmp_path}/stash")
    other = stash_catalog(f"sqlite://{tmp_path}/other")
    return {"persist": persist, "stash": stash, "shadow": shadow_catalog(persist, other)}


@pytest.mark.parametrize("place", ["persist", "stash", "shadow"])
def test_every_call_of_a_catalog_raises(places: dict[str, Any], place: str) -> None:
    with (
        places[place].open(OpenMode.WRITABLE, **WHO) as catalog,
        places[place].open(OpenMode.READ_ONLY) as reader,
    ):
        feed = catalog.subscribe()
        tx = catalog.transaction()
        commit = {**WRITES, "commit_transaction": lambda c: c.commit_transaction(tx)}
        shadow: Calls = {"compare": lambda c: c.compare(), "resync": lambda c: c.resync()}
        _all_raise(
            [
                (reader, READS),
                (catalog, {**READS, **commit, **(shadow if place == "shadow" else {})}),
                (feed, {"next": lambda f: f.next(0)}),
            ]
        )
        assert in_child({"close": lambda: (feed.close(), tx.close(), reader.close(), catalog.close())}) == {
            "close": ""
        }

        # The parent's transaction, lease and fence stand.
        catalog.commit_transaction(tx)
        catalog.confirm_leadership()
        reader.sync()
        assert feed.next(0) == []
        feed.close()


def test_the_calls_of_catalogs_are_all_tried() -> None:
    # Getters call `objects` or `stream`.
    getters = public_names(Getters) - {"objects", "stream"}
    named = {"place", "boot_ts", "close", "retire"} | getters
    setters = public_names(WritableHandle) & public_names(ShadowCatalog)
    typed = {name for name in setters if name not in READS and name not in WRITES} - named
    _covers(ReadOnlyHandle, READS, *named)
    # What sets one type of object is a transaction.
    _covers(WritableHandle, {**READS, **WRITES}, *named, *typed)
    _covers(StoreSubscription, {"next": len}, "frontier", "close")


def test_a_savepoint_that_ends_in_a_child_is_the_parents(places: dict[str, Any]) -> None:
    places["persist"].initialize(**WHO)
    with places["persist"].open(OpenMode.SAVEPOINT, **WHO) as savepoint:
        _all_raise([(savepoint, {"objects": READS["objects"], "transaction": WRITES["transaction"]})])
        assert in_child({"close": savepoint.close}) == {"close": ""}
        assert savepoint.objects(CONFIGS)


def test_a_stream_of_a_catalog_ends_in_a_child_and_goes_on_in_the_parent(places: dict[str, Any]) -> None:
    with places["stash"].open(OpenMode.WRITABLE, **WHO) as catalog:
        whole = list(catalog.stream(CONFIGS))
        stream = catalog.stream(CONFIGS)
        first = next(stream)
        assert in_child({"next": lambda: next(stream)}) == {"next": "UsedAfterFork"}
        assert [first, *stream] == whole


def test_every_call_of_a_collection_raises(client: PersistClient) -> None:
    controller = StorageController(client)
    controller.create_collection(CollectionSpec("c1", "flights", SCHEMA, shards=2))
    source = controller.renditions.create("flights", shards=1, recipe=Recipe.SOURCE).id
    writer, reader = (
        controller.writer("flights", purpose="test"),
        controller.reader("flights", purpose="test"),
    )
    writer.append(ROW, 0, 10)
    fed = controller.rendition_writer("flights", source, purpose="test")
    same = controller.writer("flights", purpose="test", replicated=True)
    listen, bulk, position = reader.listen(0), writer.bulk(), writer.position()
    changes = reader.changes(0, 9)
    of_reader: Calls = {
        "since": lambda r: r.since(),
        "upper": lambda r: r.upper(),
        "readable": lambda r: r.readable(),
        "snapshot": lambda r: r.snapshot(9),
        "complete_snapshot": lambda r: r.complete_snapshot(9, PLAIN_NAMES),
        "snapshot_parts": lambda r: r.snapshot_parts(9),
        "listen": lambda r: r.listen(1),
        "shown": lambda r: r.shown(SCHEMA.arrow_updates.empty_table()),
        "changes": lambda r: r.changes(0, 9),
        "changes_at": lambda r: r.changes_at(9, 10),
        "change_counts": lambda r: r.change_counts(0),
        "changed_within": lambda r: r.changed_within(0, 9, 5),
        "sum_changes": lambda r: r.sum_changes(0, 9, 5),
        "shards_between": lambda r: r.shards_between(0, 9),
        "subscribe": lambda r: r.subscribe(9),
        "allow_compaction": lambda r: r.allow_compaction(1),
        "described": lambda r: r.described(source),
        "follower": lambda r: r.follower(r.info.holding),
        "listens": lambda r: r.listens(r.info.holding, 0, None),
        "handed_over": lambda r: r.handed_over(r.info.holding, r.info.holding),
        "is_dropped": lambda r: r.is_dropped(),
    }
    of_writer: Calls = {
        "upper": lambda w: w.upper(),
        "append": lambda w: w.append(ROW, 10, 20),
        "position": lambda w: w.position(),
        "known_position": lambda w: w.known_position(position),
        "prepare": lambda w: w.prepare(ROW, position, 20),
        "bulk": lambda w: w.bulk(),
        "hand_out": lambda w: w.hand_out(position, lease_s=5),
        "seal": lambda w: w.seal(20),
    }
    of_fed: Calls = {
        "upper": lambda w: w.upper(),
        "append": lambda w: w.append(ROW, 1, 2),
        "seal": lambda w: w.seal(3),
    }
    _all_raise(
        [
            (
                controller,
                {
                    "describe": lambda c: c.describe("flights"),
                    "list_collections": lambda c: c.list_collections(),
                    "create_collection": lambda c: c.create_collection(CollectionSpec("c2", "b", SCHEMA)),
                    "drop_collection": lambda c: c.drop_collection("flights"),
                    "hold": lambda c: c.hold("flights", purpose="x"),
                    "holds": lambda c: c.holds("flights"),
                    "history": lambda c: c.history("flights"),
                    "advance": lambda c: c.advance("flights"),
                    "stored": lambda c: c.stored("flights"),
                    "frontiers": lambda c: c.frontiers("flights"),
                    "uppers": lambda c: c.uppers(["flights"]),
                    "read_together": lambda c: c.read_together("flights"),
                    "writer": lambda c: c.writer("flights", purpose="child"),
                    "reader": lambda c: c.reader("flights", purpose="child"),
                    "retain": lambda c: c.retain("flights", 5),
                    "apply_retention": lambda c: c.apply_retention("flights"),
                    "rename": lambda c: c.rename("flights", "others"),
                    "rename_column": lambda c: c.rename_column("flights", "name", "other"),
                    "drop_column": lambda c: c.drop_column("flights", "name"),
                    "set_retention_hold": lambda c: c.set_retention_hold("flights", 5),
                    "jobs": lambda c: c.jobs(),
                    "job": lambda c: c.job("x"),
                    "forget_jobs": lambda c: c.forget_jobs(["x"]),
                    "renditions": lambda c: c.renditions.create("flights", shards=1),
                },
            ),
            (reader, of_reader),
            (writer, of_writer),
            (fed, of_fed),
            (same, {"append": of_writer["append"]}),
            (listen, {"next": lambda each: each.next(0), "__iter__": lambda each: next(iter(each))}),
            (bulk, {"add": lambda b: b.add(ROW), "prepare": lambda b: b.prepare(position, 20)}),
            (changes, {"next": next}),
        ]
    )
    _covers(CollectionReader, of_reader, "schema", "close")
    _covers(CollectionWriter, of_writer, "schema", "full_schema", "uploaded")
    _covers(CollectionListen, {"next": len})
    _covers(BulkAppend, {"add": len, "prepare": len}, "renew", "close")

    held = client.inspect(controller.describe("flights").metadata_shard).holds
    closed = in_child(
        {"close": lambda: [each.close() for each in (bulk, reader, same, controller)]},  # type: ignore[attr-defined]
    )
    assert closed == {"close": ""}
    assert client.inspect(controller.describe("flights").metadata_shard).holds == held
    writer.append(ROW, 10, 20)
    assert reader.snapshot(19).to_table().num_rows == 1
    for each in (bulk, reader, same, controller):
        each.close()  # type: ignore[attr-defined]


def test_every_call_of_a_table_raises_and_the_child_opens_its_own(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/location"
    table = holdfast.table(url, "t", columns={"k": "int64", "v": "string"}, key=["k"])
    time = table.append(ROW)
    tail = table.tail(time)
    calls: Calls = {
        "schema": lambda t: t.schema,
        "comments": lambda t: t.comments,
        "since": lambda t: t.since,
        "upper": lambda t: t.upper,
        "append": lambda t: t.append(ROW),
        "upsert": lambda t: t.upsert(ROW),
        "merge": lambda t: t.merge(ROW),
        "delete": lambda t: t.delete([1]),
        "update": lambda t: t.update([1], lambda rows: rows),
        "revert": lambda t: t.revert(time),
        "read": lambda t: t.read(),
        "scan": lambda t: t.scan(),
        "count": lambda t: t.count(),
        "to_polars": lambda t: t.to_polars(),
        "to_duckdb": lambda t: t.to_duckdb(),
        "retention": lambda t: t.retention,
        "export": lambda t: t.export("/proc/nowhere"),
        "retain": lambda t: t.retain("1d"),
        "rename": lambda t: t.rename("others"),
        "alter": lambda t: t.alter(add={"w": "int64?"}),
        "rename_column": lambda t: t.rename_column("v", "w"),
        "drop_column": lambda t: t.drop_column("v"),
        "counts": lambda t: t.counts(),
        "history": lambda t: t.history(),
        "to_pandas": lambda t: t.to_pandas(),
        "diff": lambda t: t.diff(time),
        "tail": lambda t: t.tail(),
        "latest_time": lambda t: t.latest_time(),
        "comment": lambda t: t.comment({"v": "x"}),
    }
    inner: Calls = {
        "check_open": lambda t: t.check_open(),
        "check_writable": lambda t: t.check_writable(),
        "describe": lambda t: t.describe(),
        "writer": lambda t: t.writer(),
        "existing": lambda t: t.existing(time + 1, None),
        "contents": lambda t: t.contents(None, None),
        "renew": lambda t: t.renew(),
        "complete": lambda t: t.complete(time),
        "time_for": lambda t: t.time_for(time, or_earlier=False),
        "past": lambda t: t.past(time),
        "tail": lambda t: t.tail(time, snapshot=False),
        "latest_time": lambda t: t.latest_time(None),
    }
    _all_raise([(table, calls), (table._opened, inner), (tail, {"next": lambda each: each.next(0)})])
    _covers(Table, calls, "name", "key", "client", "close")
    within = "position", "moved", "forget", "follow", "is_contended", "turn"
    _covers(OpenTable, inner, "name", "close", *within, "apply_retention", "users")
    _covers(Tail, {"next": len}, "progress", "close", "closed")

    def works() -> None:
        tail.close()
        table.close()
        with holdfast.table(url, "t") as own:
            own.append([{"k": 2, "v": "child"}])

    assert in_child({"works": works}) == {"works": ""}
    assert sorted(table.read().column("k").to_pylist()) == [1, 2]
    assert tail.next(5).num_rows == 1
    tail.close()
    table.close()


def test_a_child_opens_a_table_though_a_thread_of_the_parent_was_opening_one(tmp_path: Path) -> None:
    from holdfast.tables import shared_clients

    url = f"file://{tmp_path}/location"
    holdfast.table(url, "t", columns={"k": "int64"}).close()
    with locks_held(shared_clients._lock):
        assert in_child({"open": lambda: holdfast.table(url, "t").close()}) == {"open": ""}
