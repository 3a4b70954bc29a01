"""Fills a new catalog from a dump or from another catalog, instead of its bootstrap. Blocking.

Invariants
- A dump is read as a stream. Only its rows are in memory.
- The rows are first loaded into a catalog in memory, which is then opened. If that fails, nothing was
  created.
- The rows are stored in one append, and only if the catalog doesn't exist yet.
- The source is read with the operator's rights, and messages may show a part of it. So its URL must be within
  the locations that the namespace may use. The caller has checked this.
"""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final, TextIO, assert_never
from urllib.parse import unquote, urlsplit

from holdfast.catalog import OpenableCatalog, catalog_shard_id, persist_catalog
from holdfast.catalog.debug import rows_of_dump
from holdfast.catalog.objects.codec import Row
from holdfast.catalog.stores.persist import CatalogShard
from holdfast.errors import BadInput, CatalogOutOfSync, HoldfastError, NoLocation, Uninitialized
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.stores import Location, MemoryBlob, MemoryConsensus
from holdfast.persist.stores.s3_place import S3Place
from holdfast_operator.catalogs.facts import RestoreFailed
from holdfast_operator.places.storage import (
    CatalogSource,
    DumpSource,
    RestoreSource,
    keys_to_open,
    of_s3,
)

_QUIET = PersistConfig(maintenance="off")
_READ_BYTES: Final = 8 << 20
"""The number of bytes of an S3 object to read in one request and to keep in memory."""


def prepare(
    source: RestoreSource,
    organization_id: str,
    holder: str,
    credentials: Mapping[str, str] = MappingProxyType({}),
) -> list[Row]:
    """Returns the rows to restore, after a check that this operator can open a catalog made of them.

    `credentials` are those of its stores. For a store that they have none for, the operator uses its own.

    Raises `RestoreFailed` for every problem with the source.
    """
    try:
        rows = _read(source, credentials)
        with PersistClient(
            Location.of(MemoryBlob("rehearsal"), MemoryConsensus("rehearsal")), config=_QUIET
        ) as client:
            rehearsal = persist_catalog(client, organization_id)
            rehearsal.load(rows, holder=holder, purpose="rehearsal of a restore")
            rehearsal.check_open()
    except (HoldfastError, OSError, UnicodeError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RestoreFailed(f"{source} can't be restored: {said}") from error
    return rows


def commit(closed: OpenableCatalog, rows: list[Row], *, deploy_generation: int, holder: str) -> bool:
    """Creates the catalog with these rows. Returns False if it exists, even if only since just now."""
    try:
        closed.load(
            rows,
            deploy_generation=deploy_generation,
            holder=holder,
            purpose="restore",
            only_new=True,
        )
    except CatalogOutOfSync:
        return False
    return True


def _read(source: RestoreSource, credentials: Mapping[str, str]) -> list[Row]:
    match source:
        case DumpSource():
            with _dump(source, of_s3(credentials)) as text:
                return list(rows_of_dump(text))
        case CatalogSource():
            return _rows_of_catalog(source, credentials)
        case _:
            assert_never(source)


def _rows_of_catalog(source: CatalogSource, credentials: Mapping[str, str]) -> list[Row]:
    place = source.storage
    try:
        client = PersistClient.open(
            place.url,
            blob=place.blob,
            consensus=place.consensus,
            mode="read",
            config=_QUIET,
            credentials=keys_to_open(credentials),
        )
    except NoLocation as error:
        raise Uninitialized(f"{place} doesn't exist") from error
    with client:
        # The stored rows may have any format version. The next open upgrades them.
        shard_id = catalog_shard_id(source.organization_id)
        upper = client.recent_upper(shard_id) if client.exists(shard_id) else 0
        if upper == 0:
            raise Uninitialized(f"{place} has no catalog of {source.organization_id}")
        store = CatalogShard(client, shard_id, purpose="restore")
        try:
            return list(store.rows(upper - 1 if source.as_of is None else source.as_of))
        finally:
            store.close()


@contextmanager
def _dump(source: DumpSource, credentials: Mapping[str, str] | None) -> Iterator[TextIO]:
    parts = urlsplit(source.url)
    if parts.scheme == "s3":
        folder, _, name = unquote(parts.path).strip("/").rpartition("/")
        if not name:
            raise BadInput("the URL names no object")
        with _s3_object(parts._replace(path=folder).geturl(), name, credentials) as content:
            yield io.TextIOWrapper(content, "utf-8")
        return
    if parts.netloc:
        raise BadInput("a file:// URL must have an absolute path, like file:///folder/dump.json")
    with Path(unquote(parts.path)).open(encoding="utf-8") as text:
        yield text


@contextmanager
def _s3_object(folder: str, name: str, credentials: Mapping[str, str] | None) -> Iterator[BinaryIO]:
    place = S3Place.of(urlsplit(folder))
    try:
        from holdfast.persist.stores.s3_input import open_s3_input
    except ModuleNotFoundError as error:
        raise BadInput("an s3:// URL needs boto3, which is not installed with the operator") from error
    with open_s3_input(place, name, credentials) as found:
        if found is None:
            raise BadInput(f"{place} has no object {name}")
        # Two buffers: with only one, an empty buffer would request just the next few kilobytes of text.
        with io.BufferedReader(found, _READ_BYTES) as ahead:
            yield io.BufferedReader(ahead)
