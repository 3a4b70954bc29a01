"""A migration takes over from a writer that never stops committing."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import FenceToken, Kind, OpenMode, catalog_shard_id, linked_catalog
from holdfast.catalog.move.linked import LinkedCatalog
from holdfast.catalog.move.migration import BackendMigration
from holdfast.catalog.move.records import running_of
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.move.two_stores import TwoStores
from holdfast.catalog.objects.codec import Row, RowUpdate, encode
from holdfast.catalog.objects.registry import SETTINGS
from holdfast.catalog.stores.persist import CatalogShard
from holdfast.catalog.stores.preamble import read_preamble
from holdfast.catalog.stores.stash import StashStore
from holdfast.persist import PersistClient
from testbed.linkedstores import ORG, WHO, LinkedPlace


class BusyStash(StashStore):
    """A stash to which somebody commits whenever its contents were read, until a migration has it."""

    def __init__(self, url: str, written: list[str]) -> None:
        super().__init__(url)
        self._url_of_all, self.written = url, written

    def another(self, *, purpose: str) -> "BusyStash":
        return BusyStash(self._url_of_all, self.written)

    def batches(self, as_of: int, *, but: Collection[Kind] = ()) -> Iterator[pa.RecordBatch]:
        yield from super().batches(as_of, but=but)
        with closing(StashStore(self._url_of_all)) as writer:
            self._write(writer)

    def _write(self, writer: StashStore) -> None:
        seen = read_preamble(writer, writer.upper())
        if running_of(seen.config) is not None:
            return
        assert len(self.written) < 5, "the contents are read again for each commit"
        self.written.append(f"w{len(self.written)}")
        row = encode(SETTINGS, pb.SettingKey(name=self.written[-1]), pb.SettingValue(value="written"))
        writer.append([RowUpdate(row, 1)], seen.upper, fence=seen.fence_row)


class BusyShard(CatalogShard):
    """A shard to which the process with `token` commits whenever a whole state of it was read."""

    def __init__(self, client: PersistClient, token: FenceToken, written: list[str]) -> None:
        super().__init__(client, catalog_shard_id(ORG), purpose="a test")
        self._of_all, self.written = (client, token, written), written

    def another(self, *, purpose: str) -> "BusyShard":
        return BusyShard(*self._of_all)

    def rows(self, as_of: int, kinds: Iterable[Kind] = ()) -> Iterator[Row]:
        yield from super().rows(as_of, kinds)
        client, token, written = self._of_all
        writer = CatalogShard(client, catalog_shard_id(ORG), purpose="a writer")
        upper = writer.upper()
        if read_preamble(writer, upper).token == token:
            assert len(written) < 20, "the state is read again for each commit"
            written.append(f"w{len(written)}")
            row = encode(SETTINGS, pb.SettingKey(name=written[-1]), pb.SettingValue(value="written"))
            writer.append([RowUpdate(row, 1)], upper)
        writer.close()


def test_a_writer_does_not_keep_a_migration_out(tmp_path: Path) -> None:
    place = LinkedPlace(tmp_path)
    catalog = linked_catalog(place.stash(), place.persist(), backend=Backend.STASH)
    catalog.open(OpenMode.WRITABLE, **WHO).close()
    written: list[str] = []
    busy = TwoStores(BusyStash(f"sqlite://{tmp_path}/stash.sqlite", written), place.stores().persist)
    options: dict[str, Any] = {"migration_id": "m", "target": Backend.PERSIST, "holder": "me"}
    outcome = BackendMigration(cast("LinkedCatalog", SimpleNamespace(stores=busy)), **options).run()
    assert outcome.moved
    with catalog.open(OpenMode.READ_ONLY) as moved:
        assert {*written} <= {each.key.name for each in moved.objects(SETTINGS)}
    assert written
    place.close()


def test_nor_does_one_that_is_faster_than_any_reader(tmp_path: Path) -> None:
    place = LinkedPlace(tmp_path)
    catalog = linked_catalog(place.stash(), place.persist(), backend=Backend.PERSIST)
    catalog.open(OpenMode.WRITABLE, **WHO).close()
    token = place.seen().persist.token
    assert token is not None
    written: list[str] = []
    busy = TwoStores(place.stores().stash, BusyShard(place.client, token, written))
    options: dict[str, Any] = {"migration_id": "m", "target": Backend.STASH, "holder": "me"}
    outcome = BackendMigration(cast("LinkedCatalog", SimpleNamespace(stores=busy)), **options).run()
    assert outcome.moved
    with catalog.open(OpenMode.READ_ONLY) as moved:
        assert {*written} <= {each.key.name for each in moved.objects(SETTINGS)}
    assert written
    place.close()
