"""A catalog that another process writes, and that this process only reads. Blocking.

Invariants
- This process writes nothing: no epoch, no hold, no record, not even a lease. So the writer may compact data
  away while this process reads it. Then the catalog is read again.
- The fence token and the format version are read at every version of the format. Everything else is read only
  at the version that this operator supports. Nothing is upgraded.
- If two stores are linked, each read uses the store that is the source of truth at that moment.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from holdfast.catalog import CATALOG_VERSION, FenceToken, OpenMode, ReadOnlyCatalog, catalog_shard_id
from holdfast.catalog import config as catalog_config
from holdfast.catalog.move.linked import LinkedCatalog
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.stores.persist import CatalogShard
from holdfast.catalog.stores.preamble import Preamble, read_preamble
from holdfast.catalog.stores.store import CatalogStore
from holdfast.collections import StorageController
from holdfast.errors import HoldfastError, NoLocation, StorageError
from holdfast.persist import PersistClient
from holdfast_operator.catalogs.facts import CatalogFacts, NothingThere, NotReadable, Opening
from holdfast_operator.catalogs.linking import closed_catalog, connect, linked_by
from holdfast_operator.places.credentials import NO_CREDENTIALS, Credentials

T = TypeVar("T")


class ObservedCatalog:
    """A catalog that is only read, with a read-only client of its location."""

    def __init__(self, opening: Opening, client: PersistClient, credentials: Credentials) -> None:
        self.opening = opening
        self.client = client
        self._closed = closed_catalog(client, opening, credentials, read_only=True)
        shard = catalog_shard_id(opening.organization_id)
        self._stores: dict[Backend, CatalogStore] = {
            Backend.PERSIST: CatalogShard(client, shard, purpose=opening.purpose)
        }
        if isinstance(self._closed, LinkedCatalog):
            stash = self._closed.stores.of(Backend.STASH)
            self._stores[Backend.STASH] = stash.another(purpose=opening.purpose)
        self.controller = StorageController(client)
        self._catalog: ReadOnlyCatalog | None = None
        self._lock = threading.RLock()

    @classmethod
    def open(cls, opening: Opening, credentials: Credentials = NO_CREDENTIALS) -> "ObservedCatalog":
        """Opens the location for reading.

        Raises `NothingThere` if no writer has initialized the catalog yet, `UnknownLocation` if the storage
        can't be opened at all, and `StoreUnreachable`.
        """
        try:
            client = connect(opening.storage, credentials, mode="read")
        except NoLocation as error:
            raise NothingThere(str(error), hint=error.hint) from error
        try:
            found = cls(opening, client, credentials)
            found._preamble()
        except BaseException:
            client.close()
            raise
        return found

    def confirm(self) -> CatalogFacts:
        """Returns what the catalog holds. Raises `NothingThere` if it isn't initialized."""
        with self._lock:
            store, seen, token = self._preamble()
            version = seen.config[catalog_config.USER_VERSION]
            facts = CatalogFacts(
                organization_id=self.opening.organization_id,
                shard_id=catalog_shard_id(self.opening.organization_id),
                epoch=token.epoch,
                deploy_generation=token.deploy_generation,
                catalog_version=version,
                since=store.since,
                upper=seen.upper,
                object_counts=(),
                holder=token.by,
                **linked_by(self._closed),
            )
            if version != CATALOG_VERSION:
                self._let_go()
                return facts
            catalog = self._synced()
            counts = tuple(sorted(catalog.object_counts().items()))
            return replace(facts, upper=catalog.upper, object_counts=counts)

    def read(self, work: Callable[[ReadOnlyCatalog], T]) -> T:
        """Returns the result of `work` on the catalog.

        Raises `NotReadable` if its format has another version, and everything that `confirm` raises.
        """
        with self._lock:
            _, seen, _ = self._preamble()
            if (version := seen.config[catalog_config.USER_VERSION]) != CATALOG_VERSION:
                raise NotReadable(f"the catalog has format version {version}, not {CATALOG_VERSION}")
            return work(self._synced())

    def close(self) -> None:
        """Closes the handles and the client."""
        with self._lock:
            self._let_go()
            for store in self._stores.values():
                store.close()
            self.controller.close()
            self.client.close()

    def _preamble(self) -> tuple[CatalogStore, Preamble, FenceToken]:
        truth = Backend.PERSIST
        if isinstance(self._closed, LinkedCatalog):
            truth = self._closed.source_of_truth()
        store = self._stores[truth]
        seen = read_preamble(store, store.upper())
        if not seen.is_initialized or seen.token is None:
            raise NothingThere(f"{self.opening.storage} has no catalog of {self.opening.organization_id} yet")
        return store, seen, seen.token

    def _synced(self) -> ReadOnlyCatalog:
        """Returns the catalog with all commits. If the handle can't sync, it opens a new one."""
        if self._catalog is not None:
            try:
                self._catalog.sync()
                return self._catalog
            except StorageError:
                raise
            except HoldfastError:
                self._let_go()
        self._catalog = self._closed.open(OpenMode.READ_ONLY, purpose=self.opening.purpose)
        return self._catalog

    def _let_go(self) -> None:
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()
