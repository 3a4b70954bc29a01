"""The upgrade at an open: its result, its refusals, and what other processes notice."""

import json
from collections.abc import Iterator
from itertools import pairwise

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import CATALOG_VERSION, MIN_VERSION, OBJECT_TYPES, FenceToken, OpenMode, config
from holdfast.catalog.objects.codec import Row, RowUpdate, encode
from holdfast.catalog.objects.registry import FENCE_TOKENS, ITEMS, ROLES, STORAGE_USAGE, Kind
from holdfast.catalog.stores.persist import SCHEMA, catalog_shard_id
from holdfast.catalog.stores.preamble import version_row
from holdfast.catalog.stores.store import KEEP_VERSIONS, RETAIN_VERSIONS, CatalogStore, Kept
from holdfast.catalog.upgrade.objects import collections_of
from holdfast.catalog.upgrade.plan import Chain
from holdfast.catalog.upgrade.runner import Upgraded, upgrade
from holdfast.catalog.upgrade.shape import same_bytes
from holdfast.catalog.upgrade.step import OldRows, Step
from holdfast.errors import (
    BadInput,
    CorruptBlob,
    Deprecated,
    Fenced,
    HoldfastError,
    NotWritable,
    UniquenessViolation,
    UpgradeNeeded,
    VersionTooNew,
)
from testbed.oldcatalogs import make_row, rows_of, upgraded
from testbed.oldstores import ORG, MemoryPlace, begin, but_fence, contents

ITEMS_IN_IT = 20
WHO = {"holder": "me", "purpose": "test"}


def old_place(version: int = MIN_VERSION, extra: tuple[Row, ...] = ()) -> MemoryPlace:
    place = MemoryPlace()
    begin(place.store(), (*rows_of(version, items=ITEMS_IN_IT), *extra))
    return place


@pytest.mark.parametrize("version", range(MIN_VERSION, CATALOG_VERSION))
def test_a_writable_open_upgrades_one_version_a_commit(version: int) -> None:
    place = old_place(version)
    rows = tuple(rows_of(version, items=ITEMS_IN_IT))
    catalog = place.catalog().open(OpenMode.WRITABLE, **WHO)
    store = place.store()
    assert contents(store) == but_fence(upgraded(rows, version))
    assert catalog.catalog_version == CATALOG_VERSION
    # The fence is time 1, then comes one version a time.
    assert store.upper() == catalog.upper == 2 + CATALOG_VERSION - version
    for between in range(version, CATALOG_VERSION + 1):
        at = store.rows(1 + between - version)
        assert but_fence(at) == but_fence(upgraded(rows, version, between))
    assert catalog.fence_token().epoch == 2
    assert {item.value.name for item in catalog.objects(ITEMS)} == {
        f"item {number + 1}" for number in range(ITEMS_IN_IT)
    }
    catalog.ensure_item("big", "schema 1", "new")


def test_the_report_tells_sizes_before_and_after_each_step() -> None:
    place = old_place()
    before = place.catalog().sizes()
    catalog = place.catalog().open(OpenMode.WRITABLE, **WHO)
    report = catalog.upgrade_report
    assert report is not None
    assert (report.source, report.target) == (MIN_VERSION, CATALOG_VERSION)
    assert [step.source for step in report.steps] == list(range(MIN_VERSION, CATALOG_VERSION))
    assert all(step.after == later.before for step, later in pairwise(report.steps))
    migratable = {row.name for row in OBJECT_TYPES.values() if row.migratable}
    assert report.steps[0].before == {name: size for name, size in before.items() if name in migratable}
    after = place.catalog().sizes()
    assert report.steps[-1].after == {name: size for name, size in after.items() if name in migratable}
    assert before["items"].rows == after["items"].rows == ITEMS_IN_IT
    assert before["items"].bytes != after["items"].bytes
    assert report.seconds >= sum(step.seconds for step in report.steps) > 0
    assert place.catalog().open(OpenMode.WRITABLE, **WHO).upgrade_report is None


@pytest.mark.parametrize("mode", ["read", "write"])
def test_trying_an_upgrade_changes_nothing(mode: str) -> None:
    place = old_place()
    rows = tuple(rows_of(MIN_VERSION, items=ITEMS_IN_IT))
    before = place.versions()
    catalog = place.catalog(mode=mode)
    catalog.check_open()
    savepoint = catalog.open(OpenMode.SAVEPOINT)
    in_memory = {
        encode(OBJECT_TYPES[kind], object_.key, object_.value)
        for kind, objects in savepoint.snapshot().items()
        for object_ in objects
    }
    streamed = {
        encode(row, object_.key, object_.value)
        for row in OBJECT_TYPES.values()
        if not row.cached
        for object_ in savepoint.stream(row)
    }
    assert but_fence(in_memory | streamed) == but_fence(upgraded(rows, MIN_VERSION))
    assert savepoint.catalog_version == CATALOG_VERSION
    dumped = json.loads(savepoint.dump())
    assert len(dumped["items"]) == ITEMS_IN_IT
    savepoint.ensure_item("big", "schema 1", "new")
    assert len(savepoint.objects(ITEMS)) == ITEMS_IN_IT + 1
    savepoint.close()
    with pytest.raises(BadInput, match="closed"):
        list(savepoint.stream(STORAGE_USAGE))
    if mode == "read":
        assert place.versions() == before
    assert contents(place.store()) == but_fence(rows)
    assert place.catalog().epoch() == 1


def test_who_only_reads_is_told_that_an_upgrade_is_needed() -> None:
    place = old_place()
    before = place.versions()
    with pytest.raises(UpgradeNeeded, match=f"version {MIN_VERSION}"):
        place.catalog(mode="read").open(OpenMode.READ_ONLY)
    assert place.versions() == before
    assert place.catalog().config(config.USER_VERSION) == MIN_VERSION
    assert place.catalog().is_initialized()


@pytest.mark.parametrize(
    ("version", "error"), [(MIN_VERSION - 1, Deprecated), (CATALOG_VERSION + 1, VersionTooNew)]
)
@pytest.mark.parametrize("mode", OpenMode)
def test_versions_that_this_holdfast_does_not_know_are_refused(
    version: int, error: type[HoldfastError], mode: OpenMode
) -> None:
    place = MemoryPlace()
    begin(place.store(), [row for row in rows_of(15, items=0) if row.kind is not Kind.CONFIG])
    store = place.store()
    store.append([RowUpdate(version_row(version), 1)], store.upper())
    with pytest.raises(error):
        place.catalog().open(mode, **WHO)
    with pytest.raises(error):
        place.catalog().check_open()
    assert store.upper() == 2


def item(number: int, name: str) -> Row:
    return make_row(
        17,
        Kind.ITEM,
        {"id": {"user": number}},
        {"schema_id": {"user": 2}, "name": name, "type": "OBJECT_TYPE_COLLECTION"},
    )


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (item(1000, "item 1"), UniquenessViolation, "have the same unique value.*user: 1 .*user: 1000"),
        (Row(Kind.ITEM.tag + b"\xff", b""), CorruptBlob, "a row of"),
        (Row(Kind.COMMENT.tag + b"\xff", b""), CorruptBlob, "a row of comments"),
        (Row(item(1, "").key, b""), CorruptBlob, "each key once"),
    ],
)
@pytest.mark.parametrize("mode", [OpenMode.WRITABLE, OpenMode.SAVEPOINT])
def test_an_upgrade_that_is_refused_changes_nothing(
    wrong: Row, error: type[HoldfastError], says: str, mode: OpenMode
) -> None:
    place = old_place(17, (wrong,))
    with pytest.raises(error, match=says):
        place.catalog(mode="read").check_open()
    with pytest.raises(error, match=says):
        place.catalog().open(mode, **WHO)
    assert place.store().upper() == 1
    assert place.catalog().kept_dumps() == []
    assert place.catalog().epoch() == 1


def test_a_lower_generation_is_fenced_before_it_upgrades() -> None:
    place = old_place()
    store = place.store()
    (old,) = store.rows(0, (Kind.FENCE_TOKEN,))
    new = encode(FENCE_TOKENS, pb.FenceTokenKey(), FenceToken(7, 3, "other", "test").to_proto())
    store.append([RowUpdate(old, -1), RowUpdate(new, 1)], 1)
    with pytest.raises(Fenced):
        place.catalog().open(OpenMode.WRITABLE, deploy_generation=6, **WHO)
    assert store.upper() == 2


# One step beyond the current version, for what running processes of this Holdfast make of a newer one.


def _to_bytes_of_tomorrow(old: OldRows) -> Iterator[RowUpdate]:
    for row in old.rows(Kind.ITEM):
        yield RowUpdate(row, -1)
        yield RowUpdate(Row(row.key + b"\xff", b"\xff tomorrow"), 1)
    for row in old.rows(Kind.STORAGE_USAGE):
        yield RowUpdate(row, -1)


def tomorrow(step: Step) -> Chain:
    current = step.target
    return Chain({step.source: step}, current, "2.0", lambda _: {})


NEXT = tomorrow(Step(CATALOG_VERSION, CATALOG_VERSION + 1, _to_bytes_of_tomorrow))


def upgrade_tomorrow(store: CatalogStore, chain: Chain = NEXT) -> Upgraded | None:
    return upgrade(store, chain, lambda seen: seen.next_token(FenceToken(0, 0, "tomorrow", "test")))


def test_processes_of_the_old_version_stop_with_a_plain_answer() -> None:
    place = old_place(CATALOG_VERSION)
    writer = place.catalog().open(OpenMode.WRITABLE, **WHO)
    reader = place.catalog().open(OpenMode.READ_ONLY)
    told = reader.subscribe()
    savepoint = place.catalog().open(OpenMode.SAVEPOINT)
    upgrade_tomorrow(place.store())
    with pytest.raises(Fenced):
        writer.ensure_item("big", "schema 1", "new")
    with pytest.raises(VersionTooNew):
        reader.sync()
    assert {change.collection.kind for change in told.next()} == {Kind.FENCE_TOKEN}
    with pytest.raises(VersionTooNew):
        told.next()
    savepoint.ensure_item("big", "schema 1", "new")
    with pytest.raises(VersionTooNew):
        place.catalog().open(OpenMode.READ_ONLY)


@pytest.mark.parametrize("needed", [True, False])
def test_a_build_guard_decides_whether_a_step_does_anything(needed: bool) -> None:
    place = old_place(CATALOG_VERSION)
    asked: list[str] = []

    def guard(build: str) -> bool:
        asked.append(build)
        return needed

    chain = tomorrow(Step(CATALOG_VERSION, CATALOG_VERSION + 1, _to_bytes_of_tomorrow, guard))
    before = contents(place.store())
    done = upgrade_tomorrow(place.store(), chain)
    assert done is not None
    assert asked == ["2.0"]
    assert done.seen.config[config.USER_VERSION] == CATALOG_VERSION + 1
    tag = Kind.CONFIG.tag
    unversioned = [[row for row in rows if row.key[:2] != tag] for rows in (before, contents(place.store()))]
    assert (unversioned[0] != unversioned[1]) == needed


def _twice(old: OldRows) -> Iterator[RowUpdate]:
    row = next(old.rows(Kind.ITEM))
    yield RowUpdate(row, -1)
    yield RowUpdate(row, -1)


def _of_what_is_not_there(_: OldRows) -> Iterator[RowUpdate]:
    yield RowUpdate(Row(Kind.ITEM.tag + b"no", b""), -1)


def _of_the_audit_log(_: OldRows) -> Iterator[RowUpdate]:
    yield RowUpdate(Row(Kind.AUDIT_LOG.tag + b"no", b""), 1)


@pytest.mark.parametrize(
    ("updates", "says"),
    [
        (_twice, "each once"),
        (_of_what_is_not_there, "each once"),
        (_of_the_audit_log, "a change of audit_log"),
    ],
)
def test_a_step_that_does_what_it_may_not_is_refused(updates: object, says: str) -> None:
    place = old_place(CATALOG_VERSION)
    chain = tomorrow(Step(CATALOG_VERSION, CATALOG_VERSION + 1, updates))  # type: ignore[arg-type]
    with pytest.raises(CorruptBlob, match=says):
        upgrade_tomorrow(place.store(), chain)
    assert place.store().upper() == 1


def test_a_step_sees_the_rows_before_it_while_it_changes_them() -> None:
    place = old_place(CATALOG_VERSION)
    seen: list[Row] = []

    def swap(old: OldRows) -> Iterator[RowUpdate]:
        # Each database comes to stand under the key of the one before, added before that one is retracted.
        for row in old.rows(Kind.ROLE):
            yield RowUpdate(Row(row.key + b"\x00", row.value), 1)
            seen.append(row)
            yield RowUpdate(row, -1)
        assert sorted(old.rows(Kind.ROLE)) == sorted(seen)

    expected = sorted(row for row in contents(place.store()) if row.key[:2] == ROLES.kind.tag)
    upgrade_tomorrow(place.store(), tomorrow(Step(CATALOG_VERSION, CATALOG_VERSION + 1, swap)))
    assert sorted(seen) == expected


def test_what_must_be_decoded_again_is_what_changed() -> None:
    before, after, last = (collections_of(version) for version in (17, 18, 19))
    assert not same_bytes(before[Kind.ITEM], after[Kind.ITEM])
    assert same_bytes(after[Kind.ITEM], last[Kind.ITEM])
    assert same_bytes(before[Kind.COMMENT], OBJECT_TYPES[Kind.COMMENT])


def test_the_time_before_an_upgrade_is_kept_and_can_be_dumped() -> None:
    place = old_place()
    before = place.catalog().dump()
    place.catalog().open(OpenMode.WRITABLE, **WHO)
    catalog = place.catalog()
    (kept,) = catalog.kept_dumps()
    assert kept == Kept(0, MIN_VERSION)
    store = place.store()
    advance(place, 2 * RETAIN_VERSIONS)
    store.move_holds(store.upper())
    assert store.since == 0
    assert catalog.dump(as_of=kept.time) == before
    with pytest.raises(BadInput, match="no time of version 15"):
        catalog.release_dump(15)
    with pytest.raises(NotWritable):
        place.catalog(mode="read").release_dump(MIN_VERSION)
    catalog.release_dump(MIN_VERSION)
    assert catalog.kept_dumps() == []


def test_a_kept_dump_goes_when_many_versions_were_committed_since() -> None:
    place = old_place()
    place.catalog().open(OpenMode.WRITABLE, **WHO)
    advance(place, KEEP_VERSIONS)
    place.catalog().open(OpenMode.WRITABLE, **WHO)
    assert [kept.version for kept in place.catalog().kept_dumps()] == [MIN_VERSION]
    advance(place, KEEP_VERSIONS + 2)
    place.catalog().open(OpenMode.WRITABLE, **WHO)
    assert place.catalog().kept_dumps() == []


@pytest.mark.parametrize("opens", [1, 2])
def test_a_writer_that_stays_open_lets_go_of_a_kept_dump_too(
    opens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.catalog.stores.store.KEEP_VERSIONS", 20)
    place = old_place()
    (*_, catalog) = [place.catalog().open(OpenMode.WRITABLE, **WHO) for _ in range(opens)]
    found = []
    while catalog.upper <= 22:
        catalog.set_setting("a", str(catalog.upper))
        found.append((catalog.upper, bool(place.catalog().kept_dumps())))
    assert found == [(upper, upper <= 20) for upper, _ in found]
    assert len(found) > 10


def advance(place: MemoryPlace, upper: int) -> None:
    """As many empty commits as lead to `upper`, at once."""
    writer = place.client().writer(catalog_shard_id(ORG), SCHEMA, purpose="test")
    writer.compare_and_append(None, writer.upper(), upper)
