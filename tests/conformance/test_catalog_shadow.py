"""A shadow finds differences, always returns what its primary returns, and rebuilds its secondary."""

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.catalogs import RETAINING, Catalogs, make_catalogs, of, role, roles, writable
from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import (
    IdKind,
    OpenMode,
    ReadOnlyCatalog,
    ShadowCatalog,
    shadow_catalog,
)
from holdfast.catalog.objects.codec import RowUpdate, decode, encode
from holdfast.catalog.objects.registry import AUDIT_LOG, ID_ALLOCATORS, OBJECT_TYPES, ROLES
from holdfast.catalog.one_store import OneStoreCatalog
from holdfast.catalog.opening import wall_clock_ms
from holdfast.catalog.stores.store import CatalogStore
from holdfast.errors import (
    BadInput,
    Fenced,
    Indeterminate,
    ShadowDiverged,
    StorageError,
    StoreUnreachable,
    TransactionInProgress,
    UniquenessViolation,
)

Twist = Callable[[list[RowUpdate]], list[RowUpdate]]


def twisted(store: CatalogStore, twists: list[Twist]) -> CatalogStore:
    """The store, which from now on commits what `twists` make of what it is told, or raises what they do."""
    append, another = store.append, store.another

    def twisted_append(updates: Iterable[RowUpdate], at: int, **conditions: Any) -> None:
        found = list(updates)
        for twist in twists:
            found = twist(found)
        append(found, at, **conditions)

    store.append = twisted_append  # type: ignore[method-assign]
    store.another = lambda *, purpose: twisted(another(purpose=purpose), twists)  # type: ignore[method-assign]
    return store


class Pair:
    """A primary and a secondary, each of which can be twisted."""

    def __init__(self, primary: Catalogs, secondary: Catalogs) -> None:
        self.primary, self.secondary = primary, secondary
        self.on_primary: list[Twist] = []
        self.on_secondary: list[Twist] = []
        self.told: list[ShadowDiverged] = []

    def open(self, mode: OpenMode = OpenMode.WRITABLE, *, strict: bool = True) -> Any:
        sides = (
            OneStoreCatalog(twisted(catalogs.behind(), twist), wall_clock_ms)
            for catalogs, twist in ((self.primary, self.on_primary), (self.secondary, self.on_secondary))
        )
        shadow = shadow_catalog(*sides, strict=strict, on_diverged=self.told.append)
        return shadow.open(mode, holder="me", purpose="a test of shadows")

    def meddle(self, updates: Iterable[RowUpdate]) -> None:
        store = self.secondary.behind()
        store.append(updates, store.upper())


@pytest.fixture(params=["persist shadowed by a stash", "stash shadowed by persist"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    both = make_catalogs(request.param, tmp_path, request)
    yield Pair(both.primary, both.secondary)  # type: ignore[attr-defined]
    both.close()


def contents(catalog: ReadOnlyCatalog) -> dict[str, list[str]]:
    return {
        row.name: sorted(str(found) for found in catalog.stream(row))
        for row in OBJECT_TYPES.values()
        if row.name != "fence_token"
    }


def in_secondary(pair: Pair) -> dict[str, list[str]]:
    with pair.secondary.openable().open(OpenMode.READ_ONLY) as alone:
        return contents(alone)


def armed(pair: Pair, twist: Twist) -> None:
    pair.on_secondary.append(twist)


def refuse(error: Exception) -> Twist:
    def twist(_: list[RowUpdate]) -> list[RowUpdate]:
        raise error

    return twist


def of_roles(change: Callable[[RowUpdate], list[RowUpdate]]) -> Twist:
    return lambda updates: [
        new for update in updates for new in (change(update) if update.row.kind is ROLES.kind else [update])
    ]


DOUBLED = of_roles(lambda update: [update, update])


def off_by_one(update: RowUpdate) -> list[RowUpdate]:
    object_ = decode(ID_ALLOCATORS, update.row)
    value = pb.IdAllocatorValue(next_id=object_.value.next_id + 1)
    return [RowUpdate(encode(ID_ALLOCATORS, object_.key, value), update.diff)]


def test_both_sides_hold_the_same_after_everything_that_was_done(pair: Pair) -> None:
    with pair.open() as catalog:
        assert catalog.ensure_item("holdfast", "public", "t") == "u1"
        assert catalog.allocate_ids(IdKind.USER_ITEM, 3) == [2, 3, 4]
        catalog.set_objects(ROLES, [role(1, "a"), role(2, "b")])
        with pytest.raises(UniquenessViolation):
            catalog.set_objects(ROLES, [role(3, "a")])
        catalog.dangerous_edit(AUDIT_LOG, pb.AuditLogKey(id=1), None)
        catalog.append_storage_usage([pb.StorageUsageValue(size_bytes=7)])
        with catalog.transaction() as tx:
            tx.delete(ROLES, role(1, "").key)
            assert tx.find(ROLES, pb.RoleValue(name="b")) == role(2, "b")
            with pytest.raises(BadInput):
                tx.update(ROLES, *of(role(9, "x")))
            catalog.commit_transaction(tx)
        catalog.sync()
        catalog.confirm_leadership()
        catalog.compare()
        assert contents(catalog) == in_secondary(pair)
        assert (catalog.diverged, catalog.out_of_date) == (None, None)
        assert len({len(catalog.snapshot()[row.kind]) for row in (ROLES,)}) == 1
    with pair.open(OpenMode.READ_ONLY) as reader:
        assert roles(reader) == ["b"]
    assert pair.told == []


@pytest.mark.parametrize(
    ("twist", "said"),
    [
        (of_roles(lambda _: []), "roles.*u?ser: 1"),
        (DOUBLED, "roles"),
        (
            lambda updates: [
                new
                for update in updates
                for new in (off_by_one(update) if update.row.kind is ID_ALLOCATORS.kind else [update])
                if not (update.row.kind is ID_ALLOCATORS.kind and update.diff < 0)
            ],
            "id_allocators",
        ),
        (lambda updates: [u for u in updates if u.row.kind is not AUDIT_LOG.kind], "audit_log"),
    ],
    ids=["drops an update", "doubles an update", "is off by one", "drops an event"],
)
def test_a_secondary_that_commits_something_else_is_found(pair: Pair, twist: Twist, said: str) -> None:
    catalog = pair.open()
    armed(pair, twist)

    def change(tx: Any) -> None:
        tx.insert(ROLES, *of(role(1, "a")))
        tx.audit(pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_CREATE, pb.ObjectType.OBJECT_TYPE_ROLE, "u1", "a")

    with pytest.raises(ShadowDiverged, match=said) as caught:
        catalog.in_transaction(change)
    assert "the primary" in str(caught.value)
    assert pair.secondary.behind().place in str(caught.value)
    assert "\n" not in str(caught.value)
    # The primary has it, and goes on.
    assert roles(catalog) == ["a"]
    pair.on_secondary.clear()
    if twist is DOUBLED:
        # No store gives out a row that is there twice: somebody has to look at it.
        with pytest.raises(ShadowDiverged, match="each row once"):
            catalog.resync()
        return
    catalog.resync()
    assert contents(catalog) == in_secondary(pair)


def test_a_row_changed_behind_the_secondarys_back_is_found(pair: Pair) -> None:
    catalog = pair.open()
    catalog.set_objects(ROLES, [role(1, "a")])
    pair.meddle(
        [RowUpdate(encode(ROLES, *of(role(1, "a"))), -1), RowUpdate(encode(ROLES, *of(role(1, "b"))), 1)]
    )
    assert roles(catalog) == ["a"]
    with pytest.raises(ShadowDiverged, match=r'roles: the primary alone has .*name: "a".*"b"'):
        catalog.sync()
    catalog.resync()
    assert catalog.diverged is None
    pair.meddle([RowUpdate(encode(ROLES, *of(role(9, "z"))), 1)])
    with pytest.raises(ShadowDiverged, match="commit"):
        catalog.set_objects(ROLES, [role(2, "c")])
    assert roles(catalog) == ["a", "c"]


def test_a_live_shadow_tells_and_goes_on_by_its_primary(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    catalog = pair.open(strict=False)
    catalog.set_objects(ROLES, [role(1, "a")])
    pair.meddle([RowUpdate(encode(ROLES, *of(role(9, "z"))), 1)])
    with caplog.at_level(logging.ERROR):
        catalog.sync()
    assert [error.what for error in pair.told] == ["roles"]
    assert catalog.diverged is pair.told[0]
    assert "the shadow has diverged in roles" in caplog.text
    catalog.set_objects(ROLES, [role(2, "b")])
    catalog.sync()
    assert roles(catalog) == ["a", "b"]
    assert len(pair.told) == 1
    catalog.close()
    again = pair.open(strict=False)
    assert (again.diverged, again.out_of_date) == (None, None)
    assert contents(again) == in_secondary(pair)


@pytest.mark.parametrize("strict", [True, False])
def test_a_secondary_that_fails_after_the_commit_is_out_of_date_until_it_is_made_anew(
    pair: Pair, strict: bool
) -> None:
    catalog = pair.open(strict=strict)
    armed(pair, refuse(StoreUnreachable("the secondary is away")))
    catalog.set_objects(ROLES, [role(1, "a")])
    assert "the secondary is away" in catalog.out_of_date
    catalog.set_objects(ROLES, [role(2, "b")])
    assert catalog.allocate_ids(IdKind.USER_ROLE) == [3]
    assert roles(catalog) == ["a", "b"]
    # Its store still fails, then no longer.
    catalog.resync()
    assert "the secondary is away" in catalog.out_of_date
    pair.on_secondary.clear()
    catalog.resync()
    assert catalog.out_of_date is None
    assert contents(catalog) == in_secondary(pair)
    assert pair.told == []


def test_what_the_primary_refuses_is_not_written_to_the_secondary(pair: Pair) -> None:
    catalog = pair.open()
    before = in_secondary(pair)
    pair.on_primary.append(refuse(StoreUnreachable("the primary is away")))
    with pytest.raises(StorageError, match="the primary is away"):
        catalog.set_objects(ROLES, [role(1, "a")])
    assert in_secondary(pair) == before
    pair.on_primary[:] = [refuse(Indeterminate("the answer was lost"))]
    with pytest.raises(Indeterminate):
        catalog.set_objects(ROLES, [role(1, "a")])
    assert in_secondary(pair) == before
    # It may have happened on the primary: until they are the same again, nothing is compared.
    assert "the answer was lost" in catalog.out_of_date
    pair.on_primary.clear()
    catalog.set_objects(ROLES, [role(2, "b")])
    writable(pair.primary.openable(), "another")
    with pytest.raises(Fenced):
        catalog.set_objects(ROLES, [role(3, "c")])
    assert in_secondary(pair) == before
    assert pair.told == []


def test_the_open_of_a_writer_makes_the_secondary_anew_whatever_it_held(pair: Pair) -> None:
    other = writable(pair.secondary.openable())
    other.set_objects(ROLES, [role(7, "other")])
    alone = writable(pair.primary.openable())
    alone.set_objects(ROLES, [role(1, "a")])
    catalog = pair.open()
    assert isinstance(catalog, ShadowCatalog)
    assert contents(catalog) == in_secondary(pair)
    assert roles(catalog) == ["a"]
    for fenced in (other, alone):
        with pytest.raises(Fenced):
            fenced.sync()


def test_a_secondary_is_not_made_anew_within_a_transaction(pair: Pair) -> None:
    catalog = pair.open()
    with catalog.transaction() as tx:
        tx.insert(ROLES, *of(role(1, "a")))
        with pytest.raises(TransactionInProgress):
            catalog.resync()
        catalog.commit_transaction(tx)
    catalog.resync()
    assert contents(catalog) == in_secondary(pair)
    assert (catalog.diverged, catalog.out_of_date, pair.told) == (None, None, [])


def told_reader(pair: Pair) -> Any:
    return pair.open(OpenMode.READ_ONLY, strict=False)


def test_a_reader_never_takes_a_lag_for_a_difference(pair: Pair) -> None:
    writer = pair.open()
    reader = told_reader(pair)
    held: list[Any] = []

    def look(updates: list[RowUpdate]) -> list[RowUpdate]:
        for _ in range(3):
            reader.sync()
            held.append((roles(reader), len(reader.snapshot()[ROLES.kind]), reader.object_counts()))
        held.append(reader.out_of_date)
        reader.compare()
        return updates

    armed(pair, look)
    writer.set_objects(ROLES, [role(1, "a")])
    assert held[2][0] == ["a"]
    assert "it lacks the commits from 1 on" in held[3]
    # What isn't in memory is there on one side only, too.
    writer.append_storage_usage([pb.StorageUsageValue(size_bytes=7)])
    pair.on_secondary.clear()
    reader.sync()
    reader.compare()
    assert (reader.diverged, reader.out_of_date, pair.told) == (None, None, [])


def test_a_reader_finds_a_secondary_out_of_date_that_its_writer_has_left(pair: Pair) -> None:
    writer = pair.open(strict=False)
    reader = told_reader(pair)
    armed(pair, refuse(StoreUnreachable("the secondary is away")))
    for number in range(1, 4):
        writer.set_objects(ROLES, [role(number, f"a{number}")])
        writer.append_storage_usage([pb.StorageUsageValue(size_bytes=number)])
        reader.sync()
        reader.compare()
        assert len(roles(reader)) == number
        assert "it lacks the commits from 1 on" in reader.out_of_date
    late = told_reader(pair)
    assert "it lacks the commits from 1 on" in late.out_of_date
    pair.on_secondary.clear()
    writer.resync()
    for each in (reader, late):
        each.sync()
        each.compare()
        assert (each.diverged, each.out_of_date) == (None, None)
    assert pair.told == []


@pytest.mark.parametrize("moves", [True, False])
def test_a_reader_that_reads_its_primary_anew_late_tells_of_nothing(pair: Pair, moves: bool) -> None:
    writer = pair.open(strict=False)
    reader = told_reader(pair)
    if not moves:
        armed(pair, refuse(StoreUnreachable("the secondary is away")))
    writer.set_objects(ROLES, [role(1, "a")])
    # As after a past that was gone and a store that failed: the next answer reads all of it anew.
    reader._primary._in_doubt = True
    assert roles(reader) == ["a"]
    assert reader.find(ROLES, pb.RoleValue(name="a")) == role(1, "a")
    reader.sync()
    assert (reader.out_of_date is None) == moves
    assert (reader.diverged, pair.told) == (None, [])


def plant(pair: Pair) -> None:
    pair.meddle([RowUpdate(encode(ROLES, *of(role(9, "z"))), 1)])


def test_a_reader_tells_of_a_difference_however_busy_the_catalog_is(pair: Pair) -> None:
    with pair.open() as writer:
        writer.set_objects(ROLES, [role(1, "a")])
    reader = told_reader(pair)
    primary = writable(pair.primary.openable())
    plant(pair)
    # The primary's side of the next commit is there each time the reader looks.
    primary.set_objects(ROLES, [role(2, "b")])
    reader.sync()
    assert [error.what for error in pair.told] == ["roles"]
    assert 'name: "z"' in pair.told[0].secondary
    assert roles(reader) == ["a", "b"]
    # Whoever comes later is told at the open.
    late = told_reader(pair)
    assert late.diverged is pair.told[1]
    with pytest.raises(ShadowDiverged, match="roles"):
        pair.open(OpenMode.READ_ONLY)


def test_half_of_a_commit_is_a_difference(pair: Pair) -> None:
    writer = pair.open(strict=False)
    reader = told_reader(pair)
    armed(pair, of_roles(lambda update: [update] if decode(ROLES, update.row).value.name == "a" else []))
    writer.set_objects(ROLES, [role(1, "a"), role(2, "b")])
    assert pair.told == []
    reader.sync()
    assert [error.what for error in pair.told] == ["roles"]


def test_a_difference_without_a_past_is_told_when_the_secondary_moves(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.catalog.shadow.lag.RETAIN_VERSIONS", 3)
    with pair.open() as writer:
        for number in range(5):
            writer.set_objects(ROLES, [role(1, f"a{number}")])
    plant(pair)
    reader = told_reader(pair)
    reader.sync()
    assert "or has diverged: only its writer can tell" in reader.out_of_date
    assert pair.told == []
    primary, secondary = (writable(side.openable()) for side in (pair.primary, pair.secondary))
    for side in (primary, secondary):
        side.set_objects(ROLES, [role(2, "b")])
    reader.sync()
    assert [error.what for error in pair.told] == ["roles"]


def test_a_savepoint_of_a_shadow_changes_neither(pair: Pair) -> None:
    with pair.open() as catalog:
        before = contents(catalog)
    with pair.open(OpenMode.SAVEPOINT) as savepoint:
        assert savepoint.ensure_item("holdfast", "public", "t") == "u1"
        assert savepoint.out_of_date is None
        with pytest.raises(BadInput):
            savepoint.resync()
    assert before == in_secondary(pair)
    with pair.open(OpenMode.READ_ONLY) as reader:
        assert contents(reader) == before


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores let go of all but the newest versions with each commit."""
    for module in RETAINING:
        monkeypatch.setattr(f"{module}.RETAIN_VERSIONS", 2)
        monkeypatch.setattr(f"{module}.RETENTION_STEP", 1)


def taken_over(pair: Pair) -> Any:
    """The secondary, in the hands of another process that has changed it."""
    thief = writable(pair.secondary.openable(), "another")
    for number in range(4):
        thief.set_objects(ROLES, [role(9, f"another's {number}")])
    return thief


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize(
    "act",
    [
        lambda catalog: catalog.set_objects(ROLES, [role(2, "b")]),
        lambda catalog: catalog.sync(),
        lambda catalog: catalog.compare(),
        lambda catalog: catalog.confirm_leadership(),
        lambda catalog: list(catalog.stream(ROLES)),
        lambda catalog: catalog.object_counts(),
        lambda catalog: catalog.dangerous_edit(ROLES, *of(role(2, "b"))),
    ],
    ids=["commit", "sync", "compare", "leadership", "stream", "counts", "edit"],
)
def test_a_secondary_that_was_taken_over_and_changed_is_out_of_date(
    pair: Pair, act: Callable[[Any], Any]
) -> None:
    catalog = pair.open()
    catalog.set_objects(ROLES, [role(1, "a")])
    taken_over(pair).close()
    act(catalog)
    catalog.sync()
    assert catalog.out_of_date is not None
    assert (catalog.diverged, pair.told) == (None, [])
    assert "a" in roles(catalog)
    catalog.resync()
    assert catalog.out_of_date is None
    assert contents(catalog) == in_secondary(pair)


@pytest.mark.usefixtures("forgetful")
def test_a_savepoint_whose_secondary_lost_its_past_is_not_compared(pair: Pair) -> None:
    pair.open().close()
    savepoint = pair.open(OpenMode.SAVEPOINT)
    taken_over(pair).close()
    savepoint.compare()
    assert (savepoint.diverged, pair.told) == (None, [])


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("pair", ["persist shadowed by a stash"], indirect=True)
def test_a_reader_whose_secondary_lost_its_past_compares_again_after_a_sync(pair: Pair) -> None:
    writer = pair.open()
    reader = pair.open(OpenMode.READ_ONLY)
    for number in range(8):
        writer.set_objects(ROLES, [role(1, f"a{number}")])
    # The reader's lease keeps the past of its primary; a stash has no leases.
    for _ in range(2):
        list(reader.stream(ROLES))
        reader.compare()
        assert (reader.diverged, pair.told) == (None, [])
        assert "is before since" in reader.out_of_date
    reader.sync()
    assert (reader.diverged, reader.out_of_date, pair.told) == (None, None, [])
    plant(pair)
    with pytest.raises(ShadowDiverged, match="roles"):
        reader.sync()


@pytest.mark.parametrize("takeovers", [1, 2, 3])
def test_a_takeover_between_the_copy_and_the_open_is_not_a_difference(pair: Pair, takeovers: int) -> None:
    thieves: list[Any] = []
    opened = pair.primary.openable(), pair.secondary.openable()
    load = opened[1].load

    def load_and_lose(*args: Any, **options: Any) -> Any:
        done = load(*args, **options)
        if len(thieves) < takeovers:
            thieves.append(taken_over(pair))
        return done

    opened[1].load = load_and_lose  # type: ignore[method-assign]
    shadow = shadow_catalog(*opened, strict=True, on_diverged=pair.told.append)
    with writable(shadow) as catalog:
        assert (catalog.diverged, pair.told) == (None, [])  # type: ignore[attr-defined]
        if takeovers == 3:
            assert "took over" in catalog.out_of_date  # type: ignore[attr-defined]
            catalog.resync()  # type: ignore[attr-defined]
        assert catalog.out_of_date is None  # type: ignore[attr-defined]
        catalog.set_objects(ROLES, [role(1, "a")])
        assert contents(catalog) == in_secondary(pair)
    assert len(thieves) == takeovers
