"""A catalog that this process has open for writing, and what the handlers do with it. Blocking.

Invariants
- Calls to one catalog run one after the other, because a catalog has one transaction at a time.
- Each change outside the catalog includes the catalog's fence token as a condition. So a fenced process
  changes nothing, even if it was fenced after it last checked.
- Facts are read after the leadership is confirmed. So the catalog was ours when the status was read.
- Every change is idempotent. A step that was interrupted is simply repeated.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from holdfast.catalog import Catalog, ReadOnlyCatalog, Transaction, catalog_shard_id
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.shadow.handle import ShadowCatalog
from holdfast.collections import StorageController
from holdfast.errors import ShardFinalized, UpperMismatch
from holdfast.persist import PersistClient
from holdfast_operator.api.names import FIELD_MANAGER
from holdfast_operator.catalogs import object_rows
from holdfast_operator.catalogs.facts import CatalogFacts, Opening, Start
from holdfast_operator.catalogs.linking import InTwo, StashGuard
from holdfast_operator.catalogs.objects import ObjectName, ObjectsPlan, plan_objects
from holdfast_operator.catalogs.opening import HasCatalog, Observer, no_others, open_writable
from holdfast_operator.catalogs.shadow import Shadow
from holdfast_operator.places.credentials import NO_CREDENTIALS, Credentials
from holdfast_operator.places.storage import of_s3

T = TypeVar("T")


class OpenCatalog:
    """A writable catalog, with the `client` and the `controller` of its location."""

    def __init__(
        self,
        opening: Opening,
        client: PersistClient,
        catalog: Catalog,
        start: Start,
        link: InTwo | None = None,
        s3: Mapping[str, str] | None = None,
    ) -> None:
        """`s3` are the credentials for S3 of its location. Snapshots are read with them too."""
        self.opening = opening
        self.start = start
        self._link = link
        self.client = client
        self.s3 = s3
        self._catalog = catalog
        in_stash = link is not None and link.truth is Backend.STASH
        self._stash_guard = StashGuard(link.stores, catalog) if link and in_stash else None
        self._guard = self._stash_guard or catalog.fence_guard
        self.controller = StorageController(
            client, who=opening.holder, token=str(catalog.fence_token()), guard=self._guard
        )
        self._lock = threading.RLock()
        self._destroyed = False
        self._planned: tuple[int, Mapping[ObjectName, str], ObjectsPlan] | None = None
        self._shadow = Shadow(catalog) if isinstance(catalog, ShadowCatalog) and opening.shadow else None

    @classmethod
    def open(
        cls,
        opening: Opening,
        credentials: Credentials = NO_CREDENTIALS,
        has_catalog: HasCatalog = no_others,
        observers: Sequence[Observer] = (),
    ) -> "OpenCatalog":
        """Opens the location and takes the catalog over. Raises the errors of `open_writable`."""
        opened = open_writable(opening, credentials, has_catalog, observers)
        return cls(opening, *opened, s3=of_s3(credentials.storage))

    def confirm(self) -> CatalogFacts:
        """Confirms that the catalog is still ours, and returns what it holds.

        Raises `Fenced`, `FenceRegressed`, `CatalogOutOfSync`.
        """
        with self._lock:
            self._catalog.confirm_leadership()
            token = self._catalog.fence_token()
            return CatalogFacts(
                organization_id=self.opening.organization_id,
                shard_id=catalog_shard_id(self.opening.organization_id),
                epoch=token.epoch,
                deploy_generation=token.deploy_generation,
                catalog_version=self._catalog.catalog_version,
                since=self._catalog.since,
                upper=self._catalog.upper,
                object_counts=tuple(sorted(self._catalog.object_counts().items())),
                holder=token.by,
                shadow=self._shadow.look() if self._shadow else None,
                **(self._link.facts if self._link else {}),
            )

    def plan_objects(self, declared: Mapping[ObjectName, str]) -> ObjectsPlan:
        """Returns the changes after which the catalog has the declared objects. Changes nothing itself."""
        with self._lock:
            upper = self._catalog.upper
            if self._planned is None or self._planned[:2] != (upper, declared):
                with self._catalog.transaction() as tx:
                    plan = self._plan_in(tx, declared)
                self._planned = upper, declared, plan
            return self._planned[2]

    def keep_objects(self, declared: Mapping[ObjectName, str]) -> None:
        """Makes the planned changes in one transaction, so that a dropped object is unused at the commit.

        Raises the errors of `Catalog.commit_transaction`.
        """
        with self._lock, self._catalog.transaction() as tx:
            plan = self._plan_in(tx, declared)
            owner = self.opening.organization_id
            object_rows.carry_out(tx, plan.changes, organization_id=owner, user=FIELD_MANAGER)
            self._catalog.commit_transaction(tx)

    def _plan_in(self, tx: Transaction, declared: Mapping[ObjectName, str]) -> ObjectsPlan:
        there = object_rows.contents(tx, declared, organization_id=self.opening.organization_id)
        return plan_objects(declared, there)

    def read(self, work: Callable[[ReadOnlyCatalog], T]) -> T:
        """Confirms the leadership like `confirm`, and returns the result of `work` on the catalog."""
        with self._lock:
            self._catalog.confirm_leadership()
            return work(self._catalog)

    def edit(self, work: Callable[[Catalog], T]) -> T:
        """Changes the catalog with `work` and returns its result. Raises the errors of `work`."""
        with self._lock:
            return work(self._catalog)

    def check_fence(self) -> None:
        """Raises `Fenced` if another process has taken the catalog over."""
        with self._lock:
            self._guard()

    def destroy(self) -> None:
        """Finalizes the catalog's shard and deletes its data.

        The organization can never have a catalog in this location again.

        Raises `Fenced` if another process has taken the catalog over, and `NotErased`.
        """
        with self._lock:
            # An attempt of unknown outcome or another process may have finalized it. Both are final.
            with contextlib.suppress(ShardFinalized):
                self._finalize()
            self._destroyed = True
            self.client.erase(catalog_shard_id(self.opening.organization_id))

    def close(self) -> None:
        """Closes the handles. The token stays in the store."""
        with self._lock:
            try:
                if not self._destroyed:
                    self._catalog.close()
                if self._stash_guard is not None:
                    self._stash_guard.close()
                self.controller.close()
            finally:
                self.client.close()

    def _finalize(self) -> None:
        end = self.client.prepare_finalize(catalog_shard_id(self.opening.organization_id))
        while True:
            guard = self._guard()
            try:
                self.client.multi_write([guard, end])
            except UpperMismatch:
                continue
            return
