# ruff: noqa: D102 - the interface documents its methods
"""A catalog on two stores, opened: `shadow.handle` says what an open one promises.

An open for writing makes the secondary equal to the primary by one exact load, whatever it held before (but
for a row that is there twice, which no store gives out). What is asked before an open, the primary answers
alone: the secondary may be of any age.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, assert_never

from holdfast.catalog.initialize import Bootstrap
from holdfast.catalog.interfaces import Catalog, Loaded, OpenableCatalog, OpenMode, ReadOnlyCatalog
from holdfast.catalog.objects.codec import Row
from holdfast.catalog.opening import StoredCatalog
from holdfast.catalog.shadow.handle import ShadowCatalog, ShadowReader
from holdfast.catalog.shadow.side import OnDiverged, ShadowSide, compared_rows
from holdfast.errors import BadInput, Fenced, HoldfastError

_COPIES = 3
"""How often an open copies the primary while other processes take the secondary over."""

_log = logging.getLogger(__name__)


def shadow_catalog(
    primary: OpenableCatalog,
    secondary: OpenableCatalog,
    *,
    strict: bool = False,
    on_diverged: OnDiverged | None = None,
) -> OpenableCatalog:
    """The catalog of `primary`, with every change made and compared on `secondary` too.

    A difference is logged, given to `on_diverged` and kept in the open handle's `diverged`, while the primary
    goes on answering. With `strict`, for tests, it is raised (`ShadowDiverged`), and everything is compared
    as the stores have it after every call, not only at the open.
    """
    if not isinstance(primary, StoredCatalog):
        raise BadInput(
            f"the catalog in {primary.place} can't be the primary of a shadow",
            hint="give what stash_catalog or persist_catalog gives",
        )
    return ShadowOpenable(primary, secondary, strict=strict, on_diverged=on_diverged)


class ShadowOpenable(StoredCatalog):
    """Two catalogs as one, not open. Where the primary alone answers, it is the primary's catalog."""

    def __init__(
        self,
        primary: StoredCatalog,
        secondary: OpenableCatalog,
        *,
        strict: bool,
        on_diverged: OnDiverged | None,
    ) -> None:
        super().__init__(primary.backing)
        self._primary: OpenableCatalog = primary
        self._secondary = secondary
        self._strict = strict
        self._on_diverged = on_diverged

    def initialize(
        self, *, deploy_generation: int = 0, holder: str, purpose: str, bootstrap: Bootstrap | None = None
    ) -> bool:
        made = self._primary.initialize(
            deploy_generation=deploy_generation, holder=holder, purpose=purpose, bootstrap=bootstrap
        )
        if made:
            self._follow(deploy_generation=deploy_generation, holder=holder, purpose=purpose)
        return made

    def load(
        self,
        rows: Iterable[Row],
        *,
        deploy_generation: int | None = None,
        holder: str = "",
        purpose: str = "",
        exact: bool = False,
        only_new: bool = False,
        rehearse: bool = False,
    ) -> Loaded:
        loaded = self._primary.load(
            rows,
            deploy_generation=deploy_generation,
            holder=holder,
            purpose=purpose,
            exact=exact,
            only_new=only_new,
            rehearse=rehearse,
        )
        if rehearse:
            return loaded
        self._follow(deploy_generation=loaded.token.deploy_generation, holder=holder, purpose=purpose)
        return loaded

    # The overloads of the interface say which mode gives what.
    def open(  # type: ignore[override]
        self,
        mode: OpenMode,
        *,
        deploy_generation: int = 0,
        holder: str = "",
        purpose: str = "",
        bootstrap: Bootstrap | None = None,
    ) -> ReadOnlyCatalog:
        options: dict[str, Any] = {
            "deploy_generation": deploy_generation,
            "holder": holder,
            "purpose": purpose,
            "bootstrap": bootstrap,
        }
        match mode:
            case OpenMode.READ_ONLY:
                return self._open_reader(options)
            case OpenMode.WRITABLE:
                return self._open_writable(options)
            case OpenMode.SAVEPOINT:
                return self._open_savepoint(options)
            case _:
                assert_never(mode)

    def _open_reader(self, options: dict[str, Any]) -> ShadowReader[ReadOnlyCatalog]:
        side: ShadowSide[ReadOnlyCatalog] = self._side()
        opened = ShadowReader(self._primary.open(OpenMode.READ_ONLY, **options), side)
        with _closed_on_error(opened):
            try:
                side.attach(self._secondary.open(OpenMode.READ_ONLY, **options))
            except HoldfastError as error:
                # Without a writer it stays what it is.
                side.fall_behind(f"open: {error}")
            opened.compare()
        return opened

    def _open_writable(self, options: dict[str, Any]) -> ShadowCatalog:
        def attach(primary: Catalog) -> Catalog:
            return self._open_copy(primary, options)

        opened = ShadowCatalog(self._primary.open(OpenMode.WRITABLE, **options), self._side(), attach)
        with _closed_on_error(opened):
            opened.resync()
        return opened

    def _open_savepoint(self, options: dict[str, Any]) -> ShadowCatalog:
        side: ShadowSide[Catalog] = self._side()
        opened = ShadowCatalog(self._primary.open(OpenMode.SAVEPOINT, **options), side, None)
        with _closed_on_error(opened):
            try:
                if self._secondary.is_initialized():
                    side.attach(self._secondary.open(OpenMode.SAVEPOINT, **options))
                else:
                    side.fall_behind("it is not initialized, and a savepoint does not do that")
            except HoldfastError as error:
                side.fall_behind(f"open: {error}")
            opened.compare()
        return opened

    def _side(self) -> ShadowSide[Any]:
        return ShadowSide(self._secondary.place, strict=self._strict, on_diverged=self._on_diverged)

    def _open_copy(self, primary: Catalog, options: dict[str, Any]) -> Catalog:
        """Copy the primary to the secondary and open that for writing.

        The load and the open take over one after the other. Another process that takes over in between may
        commit, and its commits are no difference between the stores: copy again. An epoch that the load did
        not write shows that this happened. Raises `Fenced` where it happens each time.
        """
        origin = {name: options[name] for name in ("deploy_generation", "holder", "purpose")}
        attempt = 1
        while True:
            copied = self._copy(primary, **origin).token
            opened = self._secondary.open(OpenMode.WRITABLE, **options)
            token = opened.fence_token()
            if token.epoch == copied.epoch + 1:
                return opened
            opened.close()
            if attempt == _COPIES:
                raise Fenced(copied, token)
            attempt += 1

    def _copy(self, primary: ReadOnlyCatalog, *, deploy_generation: int, holder: str, purpose: str) -> Loaded:
        return self._secondary.load(
            compared_rows(primary),
            deploy_generation=deploy_generation,
            holder=holder,
            purpose=purpose,
            exact=True,
        )

    def _follow(self, *, deploy_generation: int, holder: str, purpose: str) -> None:
        """Make the secondary what the primary became; what fails here, the next open does."""
        try:
            with self._primary.open(OpenMode.READ_ONLY) as primary:
                self._copy(primary, deploy_generation=deploy_generation, holder=holder, purpose=purpose)
        except HoldfastError as error:
            _log.warning("the shadow in %s is out of date: %s", self._secondary.place, error)


@contextmanager
def _closed_on_error(opened: ReadOnlyCatalog) -> Iterator[None]:
    """Close what the block can't go on with."""
    try:
        yield
    except BaseException:
        opened.close()
        raise
