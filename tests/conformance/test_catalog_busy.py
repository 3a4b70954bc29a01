"""Reads a catalog that changes so often that its first state is gone before the read ends."""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from conformance.catalogs import EMBEDDED, HOLDER, RETAINING, Catalogs, make_catalogs, role, roles, writable
from holdfast.catalog import Catalog, OpenableCatalog, OpenMode
from holdfast.catalog.objects.codec import Row
from holdfast.catalog.objects.registry import ROLES, Kind
from holdfast.catalog.one_store import OneStoreCatalog
from holdfast.catalog.stores.store import CatalogStore
from holdfast.catalog.upgrade_check import check_upgrade
from holdfast.errors import AsOfTooEarly, StorageError
from testbed.faults import ScriptedPlan
from testbed.oldstores import FaultyStore


class BusyStore(FaultyStore):
    """A store in which `meanwhile` happens before each read of rows."""

    def __init__(self, inner: CatalogStore, meanwhile: Callable[[], None]) -> None:
        super().__init__(inner, ScriptedPlan({}))
        self._meanwhile = meanwhile

    def another(self, *, purpose: str) -> "BusyStore":
        """One in which the same happens."""
        return BusyStore(self._inner.another(purpose=purpose), self._meanwhile)

    def rows(self, as_of: int, kinds: Iterable[Kind] = ()) -> Iterator[Row]:
        """As the inner one, late."""
        self._meanwhile()
        return super().rows(as_of, kinds)

    def batches(self, as_of: int, *, but: Collection[Kind] = ()) -> Iterator[pa.RecordBatch]:
        """As the inner one, late."""
        self._meanwhile()
        return self._inner.batches(as_of, but=but)


class Writer:
    """Commits more versions than are retained, at each of the reads whose numbers `at` are, from 0 on."""

    def __init__(self, catalog: Catalog, at: Callable[[int], bool]) -> None:
        self.catalog = catalog
        self._at = at
        self._reads = count()
        self._numbers = count(1)

    def __call__(self) -> None:
        if self._at(next(self._reads)):
            for _ in range(12):
                self.catalog.set_objects(ROLES, [role(1, f"r{next(self._numbers)}")])


@pytest.fixture(params=EMBEDDED)
def catalogs(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Catalogs]:
    for module in RETAINING:
        monkeypatch.setattr(f"{module}.RETAIN_VERSIONS", 4)
        monkeypatch.setattr(f"{module}.RETENTION_STEP", 1)
    catalogs = make_catalogs(request.param, tmp_path, request)
    yield catalogs
    catalogs.close()


def busy(catalogs: Catalogs, at: Callable[[int], bool]) -> tuple[Writer, OpenableCatalog]:
    """A writer, and the catalog as somebody finds it beside whom it writes."""
    writer = Writer(writable(catalogs.openable()), at)
    return writer, OneStoreCatalog(BusyStore(catalogs.behind(), writer), lambda: 1)


def open_read_only(catalog: OpenableCatalog) -> object:
    with catalog.open(OpenMode.READ_ONLY) as reader:
        return roles(reader)


def open_savepoint(catalog: OpenableCatalog) -> object:
    with catalog.open(OpenMode.SAVEPOINT) as savepoint:
        return roles(savepoint)


LOOKS: dict[str, Callable[[OpenableCatalog], object]] = {
    "read only": open_read_only,
    "savepoint": open_savepoint,
    "check": lambda catalog: catalog.check_open(),
    "dump": lambda catalog: catalog.dump(),
    "sizes": lambda catalog: catalog.sizes()["roles"],
    "upgrade check": lambda catalog: check_upgrade(catalog).objects,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("late", range(5))
def test_who_is_overtaken_reads_a_newer_state(
    catalogs: Catalogs, look: Callable[[OpenableCatalog], object], late: int
) -> None:
    writer, catalog = busy(catalogs, lambda number: number == late)
    look(catalog)
    assert writer.catalog.dump() == catalogs.openable().dump()


def test_a_writer_that_is_overtaken_takes_over_what_is_there_then(catalogs: Catalogs) -> None:
    _, catalog = busy(catalogs, lambda number: number == 1)
    with catalog.open(OpenMode.WRITABLE, **HOLDER) as mine:
        assert roles(mine) == ["r12"]


# A reader of persist holds what it reads.
@pytest.mark.parametrize("catalogs", ["stash in SQLite"], indirect=True)
def test_who_is_overtaken_for_ever_is_told_and_it_is_no_negative_answer(catalogs: Catalogs) -> None:
    _, catalog = busy(catalogs, lambda _: True)
    with pytest.raises(AsOfTooEarly):
        catalog.dump()
    with pytest.raises(StorageError, match="changes faster"):
        check_upgrade(catalog)


def test_the_changes_of_the_first_time_are_told_alone(catalogs: Catalogs) -> None:
    catalog = writable(catalogs.openable())
    catalog.set_objects(ROLES, [role(1, "a")])
    store = catalogs.behind()
    ((time, first),) = store.changes(0, 1)
    assert (time, {update.row for update in first}) == (0, set(store.rows(0)))
    assert [time for time, _ in store.changes(0, 2)] == [0, 1]
    assert store.feed(0).frontier == 0
    store.close()
