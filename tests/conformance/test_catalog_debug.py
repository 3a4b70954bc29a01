"""The debug tool on every kind of catalog: edit, delete, dump, load, and a fence that is raised by hand."""

import copy
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.catalogs import (
    EMBEDDED,
    HOLDER,
    ONE_STORE_EACH,
    PROTOCOL,
    Catalogs,
    make_catalogs,
    role,
    roles,
    writable,
)
from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import (
    Bootstrap,
    Catalog,
    FenceToken,
    IdKind,
    Object,
    OpenMode,
    Transaction,
    debug,
)
from holdfast.catalog.cache import Cache
from holdfast.catalog.dump import dump_json
from holdfast.catalog.initialize import initial_updates
from holdfast.catalog.objects.codec import Row, RowUpdate, encode
from holdfast.catalog.objects.registry import (
    AUDIT_LOG,
    CONFIGS,
    FENCE_TOKENS,
    ITEMS,
    OBJECT_TYPES,
    ROLES,
    STORAGE_USAGE,
    TIMESTAMPS,
)
from holdfast.catalog.stores.preamble import read_preamble
from holdfast.errors import (
    BadInput,
    Fenced,
    FenceRegressed,
    Uninitialized,
    UniquenessViolation,
    VersionTooNew,
)

OTHERS = [row for row in OBJECT_TYPES.values() if row is not FENCE_TOKENS]


def contents(text: str) -> dict[str, Any]:
    """A dump without its fence token, and without the order in which it shows objects."""
    found: dict[str, Any] = json.loads(text)
    del found["fence_token"]
    return found


def full(catalog: Catalog) -> None:
    """At least one object of every type."""
    for collection in OTHERS:
        if not list(getattr(catalog, f"get_{collection.name}")()):
            catalog.dangerous_edit(collection, collection.key(), collection.value())


@pytest.mark.parametrize("catalogs", EMBEDDED, indirect=True)
def test_what_a_dump_shows_can_be_edited_deleted_and_put_back(catalogs: Catalogs) -> None:
    openable = catalogs.openable()
    full(writable(openable))
    before = contents(openable.dump())
    for collection in OTHERS:
        name = collection.name
        shown = before[name][-1]
        key, value = json.dumps(shown["key"]), json.dumps(shown["value"])
        assert debug.edit(openable, name, key, value, **HOLDER, force=True) is not None
        assert contents(openable.dump()) == before
        if shown["key"] == {"key": "user_version"}:
            continue
        gone = debug.delete(openable, name, key, **HOLDER, force=True)
        assert isinstance(gone, collection.value)
        after = contents(openable.dump())
        assert shown not in after[name]
        assert {**after, name: before[name]} == before
        with pytest.raises(BadInput, match="no object with key"):
            debug.delete(openable, name, key, **HOLDER, force=True)
        assert debug.edit(openable, name, key, value, **HOLDER, force=True) is None
        assert contents(openable.dump()) == before


def test_an_edit_fences_every_running_process_and_readers_follow_it(catalogs: Catalogs) -> None:
    running = writable(catalogs.openable(), "running", generation=3)
    reader = catalogs.openable().open(OpenMode.READ_ONLY)
    count = reader.object_counts()["audit_log"]
    debug.delete(catalogs.openable(), "audit_log", '{"id": "2"}', **HOLDER)
    debug.edit(catalogs.openable(), "audit_log", '{"id": 1}', '{"object_name": "mended"}', **HOLDER)
    reader.sync()
    assert reader.object_counts()["audit_log"] == count - 1
    with pytest.raises(Fenced):
        running.confirm_leadership()
    after = writable(catalogs.openable(), generation=3)
    assert after.object_counts()["audit_log"] == count - 1
    assert sorted(event.key.id for event in after.get_audit_log()) == [1, *range(3, count + 1)]
    assert {event.value.object_name for event in after.get_audit_log() if event.key.id == 1} == {"mended"}


@pytest.mark.parametrize("catalogs", EMBEDDED, indirect=True)
@pytest.mark.parametrize(
    ("collection", "key", "value", "said"),
    [
        ("rolls", "{}", "{}", "no object type 'rolls'"),
        ("fence_token", "{}", '{"epoch": "9"}', "fence token can't be edited"),
        ("roles", "{", "{}", "the key of roles is not JSON"),
        ("roles", "7", "{}", "not a JSON object"),
        ("roles", '{"id": {"user": 1}}', '{"nome": "x"}', "not a value of roles.*nome"),
        ("roles", '{"id": {"user": "one"}}', '{"name": "x"}', "not a key of roles"),
        ("roles", '{"id": {"user": 1}}', '{"name": "x", "name": "y"}', "twice"),
        ("roles", '{"id": {"user": 1}}', '{"name": "holdfast_system"}', "two objects of roles"),
        ("config", '{"key": "tombstone"}', '{"value": 1}', "by whom"),
        ("id_allocators", '{"name": "x"}', '{"nextId": "5", "next_id": "6"}', "next_id occurs twice"),
        ("id_allocators", '{"name": "x"}', '{"next_id": "1_0"}', "not a whole number"),
        ("id_allocators", '{"name": "x"}', '{"next_id": 1.0}', "not a whole number"),
        ("id_allocators", '{"name": "x"}', '{"next_id": null}', "null"),
        ("roles", '{"id": {"user": null}}', '{"name": "x"}', "null"),
        ("items", '{"id": {"user": 1}}', '{"type": "1_0"}', "one of OBJECT_TYPE"),
        ("id_allocators", '{"name": "audit_log"}', '{"next_id": 1}', "'audit_log' .* can't go back to 1"),
        ("timestamps", '{"timeline": "epoch_milliseconds"}', '{"ts": 1}', "can't go back to 1"),
    ],
)
def test_what_can_not_be_is_refused_and_fences_nobody(
    catalogs: Catalogs, collection: str, key: str, value: str, said: str
) -> None:
    running = writable(catalogs.openable())
    before = running.dump()
    with pytest.raises(BadInput, match=said) as caught:
        debug.edit(catalogs.openable(), collection, key, value, **HOLDER)
    assert "\n" not in str(caught.value)
    running.confirm_leadership()
    assert running.dump() == before


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_reserved_config_takes_force_and_never_what_could_not_be_opened(catalogs: Catalogs) -> None:
    openable = catalogs.openable()
    writable(openable)
    before = openable.epoch()
    for key, value in (("user_version", 99), ("user_version", 1), ("tombstone", 2)):
        with pytest.raises(BadInput, match="no Holdfast could open"):
            debug.edit(
                openable, "config", f'{{"key": "{key}"}}', f'{{"value": {value}}}', **HOLDER, force=True
            )
    with pytest.raises(BadInput, match="can't be deleted"):
        debug.delete(openable, "config", '{"key": "user_version"}', **HOLDER, force=True)
    assert openable.epoch() == before
    debug.edit(openable, "config", '{"key": "tombstone"}', '{"value": 1}', **HOLDER, force=True)
    assert openable.config("tombstone") == 1
    with pytest.raises(BadInput, match="by whom"):
        debug.delete(openable, "config", '{"key": "tombstone"}', **HOLDER)
    debug.delete(openable, "config", '{"key": "tombstone"}', **HOLDER, force=True)
    assert openable.config("tombstone") is None


@pytest.mark.parametrize("catalogs", ONE_STORE_EACH, indirect=True)
def test_a_dump_loaded_into_a_new_catalog_is_dumped_again(
    catalogs: Catalogs, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = make_catalogs("persist in memory", tmp_path / "source", request)
    full(writable(source.openable(), generation=7))
    dumped = source.openable().dump()
    source.close()
    target = catalogs.openable()
    loaded = debug.load(target, io.StringIO(dumped), **HOLDER)
    assert contents(target.dump()) == contents(dumped)
    assert (loaded.token.rank, loaded.retracted) == ((0, 1), 0)
    assert loaded.added == sum(map(len, contents(dumped).values()))
    again = debug.load(target, io.StringIO(dumped), deploy_generation=2, **HOLDER)
    assert (again.added, again.retracted, again.token.rank) == (0, 0, (2, 2))
    assert (target.epoch(), target.deploy_generation()) == (2, 2)
    assert contents(target.dump()) == contents(dumped)
    with pytest.raises(Fenced):
        debug.load(target, io.StringIO(dumped), deploy_generation=1, **HOLDER)


@pytest.mark.parametrize("catalogs", ONE_STORE_EACH, indirect=True)
def test_a_load_replaces_what_may_go_back_and_fences(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    catalog.set_objects(ROLES, [role(1, "a"), role(2, "b")])
    dumped = catalog.dump()
    catalog.set_objects(ROLES, [role(1, "c"), role(3, "a")])
    catalog.set_objects(TIMESTAMPS, [timestamp("epoch_milliseconds", 1 << 60), timestamp("new", 9)])
    catalog.ensure_item("holdfast", "public", "later")
    catalog.dangerous_edit(CONFIGS, pb.ConfigKey(key="tombstone"), pb.ConfigValue(value=1))
    events = catalog.object_counts()["audit_log"]
    loaded = debug.load(catalogs.openable(), io.StringIO(dumped), **HOLDER)
    with pytest.raises(Fenced):
        catalog.sync()
    assert loaded.token.epoch == 2
    after = writable(catalogs.openable())
    assert roles(after) == ["a", "b"]
    assert after.objects(ITEMS) == ()
    assert after.object_counts()["audit_log"] == events
    assert after.allocate_ids(IdKind.USER_ITEM) == [2]
    assert {found.key.timeline: found.value.ts for found in after.objects(TIMESTAMPS)} == {
        "epoch_milliseconds": 1 << 60,
        "new": 9,
    }
    assert catalogs.openable().config("tombstone") == 1


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_a_load_never_changes_an_append_only_object(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    dumped = json.loads(catalog.dump())
    dumped["audit_log"][0]["value"]["object_name"] = "never so"
    before = catalog.dump()
    with pytest.raises(BadInput, match="audit_log has an object with that key and another value: id: 1"):
        debug.load(catalogs.openable(), io.StringIO(json.dumps(dumped)), **HOLDER)
    catalog.confirm_leadership()
    assert catalog.dump() == before


@pytest.mark.parametrize("catalogs", EMBEDDED, indirect=True)
@pytest.mark.parametrize("initialized", [True, False])
def test_what_is_no_whole_dump_is_refused(catalogs: Catalogs, initialized: bool) -> None:
    openable = catalogs.openable()
    before = ""
    if initialized:
        writable(openable)
        before = openable.dump()
    whole = before or a_dump()
    template = json.loads(whole)

    def changed(change: Callable[[dict[str, Any]], object]) -> str:
        found = copy.deepcopy(template)
        change(found)
        return json.dumps(found)

    twice = {"key": {"id": {"user": "9"}}, "value": {"name": "holdfast_system"}}
    for text, error, said in (
        ("", BadInput, "expected '{', found 'its end'"),
        ("[]", BadInput, "expected '{'"),
        (whole[:-40], BadInput, "dump"),
        (whole + "{}", BadInput, "after its end"),
        (changed(lambda d: d.pop("items")), BadInput, "has no items"),
        (changed(lambda d: d.update(itms=[])), BadInput, "no object type 'itms'"),
        (changed(lambda d: d["roles"].append({"key": {}})), BadInput, "not a key and a value"),
        (changed(lambda d: d["roles"].append(dict(d["roles"][0]))), BadInput, "roles occurs twice"),
        (changed(lambda d: d["roles"].append(twice)), BadInput, "contradict each other"),
        (changed(lambda d: d["config"].clear()), BadInput, "user_version"),
        (changed(lambda d: d["config"][0]["value"].update(value="99")), VersionTooNew, "99"),
        ('{"config": [], "config": []}', BadInput, "twice"),
        ('{"roles": [' + "[" * 100_000, BadInput, "not JSON|is not a key and a value|where one is expected"),
    ):
        with pytest.raises(error, match=said) as caught:
            debug.load(openable, io.StringIO(text), **HOLDER)
        assert "\n" not in str(caught.value)
    if initialized:
        assert openable.dump() == before
    else:
        assert not openable.is_initialized()


def test_a_dump_is_read_piece_by_piece() -> None:
    text = a_dump(roles=4000)
    assert len(text) > 3 * (1 << 16)
    rows = list(debug.rows_of_dump(io.StringIO(text)))
    assert sum(row.kind is ROLES.kind for row in rows) == 4001
    # Whatever the pieces are.
    assert list(debug.rows_of_dump(Trickle(text))) == rows


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_the_fence_is_raised_and_never_lowered(catalogs: Catalogs) -> None:
    openable = catalogs.openable()
    with pytest.raises(Uninitialized):
        openable.raise_fence(3, **HOLDER)
    catalog = writable(openable, generation=2)
    before = contents(openable.dump())
    durable = catalog.fence_token()
    assert openable.raise_fence(1, **HOLDER) == durable
    catalog.confirm_leadership()
    for epoch in (0, -1, (1 << 64) - 1):
        with pytest.raises(BadInput):
            openable.raise_fence(epoch, **HOLDER)
    with pytest.raises(Fenced):
        openable.raise_fence(9, deploy_generation=1, **HOLDER)
    raised = openable.raise_fence(9, holder="ops", purpose="after a restore")
    assert raised.rank == (2, 9)
    with pytest.raises(Fenced, match="after a restore"):
        catalog.confirm_leadership()
    assert openable.raise_fence(5, deploy_generation=4, **HOLDER).rank == (4, 9)
    assert (openable.epoch(), openable.deploy_generation()) == (9, 4)
    assert contents(openable.dump()) == before
    assert writable(openable, generation=4).fence_token().rank == (4, 10)


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_after_a_restore_the_fence_is_raised_above_whoever_ran(catalogs: Catalogs) -> None:
    for _ in range(3):
        catalog = writable(catalogs.openable())
    store = catalogs.behind()
    seen = read_preamble(store, store.upper())
    store.append(seen.fence(FenceToken(0, 1, "restored", "test")), seen.upper)
    with pytest.raises(FenceRegressed) as caught:
        catalog.sync()
    assert "holdfast catalog fence --at-least 3" in caught.value.hint
    with pytest.raises(FenceRegressed):
        catalog.allocate_ids(IdKind.USER_ITEM)
    assert catalogs.openable().raise_fence(3, **HOLDER).epoch == 3
    with pytest.raises(FenceRegressed):
        catalog.confirm_leadership()
    assert writable(catalogs.openable()).fence_token().epoch == 4


@pytest.mark.parametrize("catalogs", EMBEDDED, indirect=True)
def test_only_force_lets_an_allocator_or_a_timeline_go_back(catalogs: Catalogs) -> None:
    openable = catalogs.openable()
    running = writable(openable)
    running.allocate_ids(IdKind.USER_ITEM, 5)
    allocator, timeline = '{"name": "user_item"}', '{"timeline": "epoch_milliseconds"}'
    before = contents(running.dump())
    with pytest.raises(BadInput, match="can't be deleted") as caught:
        debug.delete(openable, "id_allocators", allocator, **HOLDER)
    assert "--force" in caught.value.hint
    running.confirm_leadership()
    assert contents(running.dump()) == before
    assert debug.edit(openable, "id_allocators", allocator, '{"next_id": 9}', **HOLDER) is not None
    debug.edit(openable, "id_allocators", allocator, '{"next_id": 2}', **HOLDER, force=True)
    debug.edit(openable, "timestamps", timeline, '{"ts": 1}', **HOLDER, force=True)
    with openable.open(OpenMode.READ_ONLY) as reader:
        assert [t.value.ts for t in reader.objects(TIMESTAMPS)] == [1]
    after = writable(openable)
    assert after.allocate_ids(IdKind.USER_ITEM) == [2]


@pytest.mark.parametrize("catalogs", EMBEDDED, indirect=True)
def test_an_append_only_object_is_mended_whatever_bytes_its_key_has(catalogs: Catalogs) -> None:
    writable(catalogs.openable()).close()
    store = catalogs.behind()
    # The number 100 in more bytes than it needs, and beside it two rows that claim one id.
    odd = Row(AUDIT_LOG.kind.tag + b"\x08\xe4\x80\x00", encode(AUDIT_LOG, *event(100, "odd")).value)
    twins = [
        encode(STORAGE_USAGE, pb.StorageUsageKey(id=7), pb.StorageUsageValue(size_bytes=n)) for n in (1, 2)
    ]
    store.append([RowUpdate(row, 1) for row in (odd, *twins)], store.upper())
    openable = catalogs.openable()
    debug.edit(openable, "audit_log", '{"id": 100}', '{"object_name": "mended"}', **HOLDER)
    debug.delete(openable, "storage_usage", '{"id": 7}', **HOLDER)
    catalog = writable(openable)
    assert [e.value.object_name for e in catalog.get_audit_log() if e.key.id == 100] == ["mended"]
    assert list(catalog.get_storage_usage()) == []
    # The allocator is beyond what was put there by hand.
    assert catalog.append_audit_event(*AN_EVENT) == 101


AN_EVENT = (pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_CREATE, pb.ObjectType.OBJECT_TYPE_ROLE, "u1", "x")


def event(number: int, name: str) -> tuple[pb.AuditLogKey, pb.AuditLogValue]:
    return pb.AuditLogKey(id=number), pb.AuditLogValue(object_name=name)


@pytest.mark.parametrize("catalogs", PROTOCOL, indirect=True)
def test_an_append_only_object_is_inserted_once(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    stored = next(iter(catalog.get_audit_log()))
    for value in (stored.value, pb.AuditLogValue(object_name="another")):
        with pytest.raises(UniquenessViolation, match="may already have an object with key"):
            catalog.in_transaction(lambda tx, value=value: tx.insert(AUDIT_LOG, stored.key, value))
    catalog.in_transaction(lambda tx: tx.insert(AUDIT_LOG, *event(50, "ahead")))
    assert catalog.append_audit_event(*AN_EVENT) == 51
    assert catalog.append_storage_usage([pb.StorageUsageValue()] * 2) == [1, 2]
    assert json.loads(catalogs.openable().dump())["audit_log"]


@pytest.mark.parametrize("catalogs", EMBEDDED, indirect=True)
def test_a_raised_fence_leaves_room_for_opens(catalogs: Catalogs) -> None:
    openable = catalogs.openable()
    writable(openable).close()
    for epoch in (0, 1 << 63, (1 << 64) - 2, 1 << 64):
        with pytest.raises(BadInput, match="out of range"):
            openable.raise_fence(epoch, **HOLDER)
    assert openable.epoch() == 1
    assert openable.raise_fence((1 << 63) - 1, **HOLDER).epoch == (1 << 63) - 1
    assert writable(openable).fence_token().epoch == 1 << 63
    store = catalogs.behind()
    seen = read_preamble(store, store.upper())
    store.append(seen.fence(FenceToken(0, (1 << 64) - 1, "last", "test")), seen.upper)
    for ask in (lambda: writable(openable), lambda: openable.raise_fence(5, **HOLDER)):
        with pytest.raises(BadInput, match="at the last epoch"):
            ask()


def timestamp(timeline: str, ts: int) -> Object[pb.TimestampKey, pb.TimestampValue]:
    return Object(pb.TimestampKey(timeline=timeline), pb.TimestampValue(ts=ts))


def a_dump(roles: int = 0) -> str:
    tx = Transaction(Cache())
    for number in range(roles):
        tx.insert(ROLES, pb.RoleKey(id=pb.RoleId(user=number)), pb.RoleValue(name=f"role {number}"))
    return dump_json(row for row, _ in (*initial_updates(Bootstrap(), 7), *tx.updates()))


class Trickle(io.StringIO):
    """A file that gives few characters at a time."""

    def read(self, size: int | None = -1) -> str:
        return super().read(7)
