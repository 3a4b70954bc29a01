# ruff: noqa: D102 - the interface documents its methods
"""Opens a catalog on two stores. `shadow.handle` explains what an open one guarantees.

An open for writing makes the secondary equal to the primary with one exact load, whatever it held before
(except a duplicate row, which no store returns). Before an open, results come only from the primary, because
the secondary may be out of date.
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
"""How often an open copies the primary if other processes take over the secondary."""

_log = logging.getLogger(__name__)


def shadow_catalog(
    primary: OpenableCatalog,
    secondary: OpenableCatalog,
    *,
    strict: bool = False,
    on_diverged: OnDiverged | None = None,
) -> OpenableCatalog:
    """The catalog of `primary`, with every change also made and compared on `secondary`.

    A difference is logged, passed to `on_diverged` and kept in `diverged` of the open handle. Results
    continue to come from the primary. With `strict`, for tests, a difference raises `ShadowDiverged`, and
    everything in the stores is compared after every call, not only at the open. If another process takes the
    secondary over and changes it, that is no difference: it is logged once, and nothing is compared any more.
    """
    if not isinstance(primary, StoredCatalog):
        raise BadInput(
            f"the catalog in {primary.place} can't be the primary of a shadow",
            hint="pass a stash_catalog or a persist_catalog",
        )
    return ShadowOpenable(primary, secondary, strict=strict, on_diverged=on_diverged)


class ShadowOpenable(StoredCatalog):
    """Two catalogs as one, not open. Methods that need only the primary use the primary's catalog."""

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
                # A reader can't change it, so it stays out of date.
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
                    side.fall_behind("it is not initialized, and a savepoint can't initialize it")
            except HoldfastError as error:
                side.fall_behind(f"open: {error}")
            opened.compare()
        return opened

    def _side(self) -> ShadowSide[Any]:
        return ShadowSide(self._secondary.place, strict=self._strict, on_diverged=self._on_diverged)

    def _open_copy(self, primary: Catalog, options: dict[str, Any]) -> Catalog:
        """Copy the primary to the secondary, and open that for writing.

        The load and the open are two takeovers. Another process may take over in between and commit. Its
        commits are not a difference between the stores, so copy again. An epoch that the load did not write
        shows that this happened. Raises `Fenced` if it happens each time.
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
        """Copy the primary to the secondary. If this fails, the next open does it."""
        try:
            with self._primary.open(OpenMode.READ_ONLY) as primary:
                self._copy(primary, deploy_generation=deploy_generation, holder=holder, purpose=purpose)
        except HoldfastError as error:
            _log.warning("the shadow in %s is out of date: %s", self._secondary.place, error)


@contextmanager
def _closed_on_error(opened: ReadOnlyCatalog) -> Iterator[None]:
    """Close `opened` if the block raises."""
    try:
        yield
    except BaseException:
        opened.close()
        raise
