"""The locations that Catalogs name, for the pages: read-only, with the credentials of their Secrets.

Invariants
- A location is opened only if the operator may open it too: within `--allow-location`, or in the
  namespace's folder on the volume.
- A place is that of one Catalog: `NAMESPACE.NAME`. If Catalogs of several namespaces have opened one
  location, by the same URL or by another one, it is shared: it is shown only to those who may see all of
  these namespaces. Each of them can write there, so its viewers must not see the others' data, neither
  through their own Catalog nor through that of the others.
- A Catalog that only names a location shares nothing. It counts for the places of others once it has opened
  the location with its own credentials, or with the operator's if it names none: in this process, or for
  the operator, which then writes the shard into its status. It still counts if its Secret is gone later. So
  nobody takes a location away from the viewers of another namespace by writing its URL into a Catalog.
- That two URLs name one location is known only when both are open. So pages never open a location:
  `Locations.run` does, and until then a place has no client, and shows no data.
- Credentials come from the Secrets that the Catalogs name, as for the operator. They are in no address and
  on no page.
- A changed Catalog or Secret replaces its place. The old one is closed when its last pages are done.
"""

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.console.places import ShownPlace
from holdfast.errors import BadInput, HoldfastError, StoreUnreachable
from holdfast.persist import PersistClient
from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.names import Kind
from holdfast_operator.console.resources import SHARED, NotListed, Resources
from holdfast_operator.engine.kube import Kube, KubeError, ObjectKey
from holdfast_operator.engine.logging import about, redact
from holdfast_operator.engine.specs import parse_spec
from holdfast_operator.places.credentials import (
    NO_CREDENTIALS,
    Credentials,
    SecretNotFound,
    credentials_of,
    forget_secrets,
)
from holdfast_operator.places.storage import Storage, keys_to_open, resolve

log = logging.getLogger(__name__)

_PAUSE: Final = 1.0
"""Seconds between two looks at whether a Catalog has changed."""
_SECRETS_SECONDS: Final = 60.0
"""Seconds after which Secrets are read again."""
_RETRY_SECONDS: Final = 10.0
"""Seconds after which a location that could not be opened is tried again."""
_CLOSE_SECONDS: Final = 60.0
"""Seconds after which a replaced place is closed."""
_THREADS: Final = 8


class CatalogPlace(ShownPlace):
    """The location of one Catalog. It has a client once `open` has succeeded."""

    def __init__(self, catalog: ObjectKey, storage: Storage, credentials: Credentials) -> None:
        super().__init__(
            name_of(catalog),
            storage.url or storage.blob or "",
            None if storage.url is not None else storage.consensus,
            namespace=catalog.namespace,
            credentials=keys_to_open(credentials.storage),
        )
        self.catalog = catalog
        self.location_id: str | None = None
        """The identity of the location. None as long as pages have no client."""
        self.found_id: str | None = None
        """The same, as soon as it is open."""
        self._trouble = "it is being opened"

    @property
    def client(self) -> PersistClient:
        """The client, which writes nothing. Raises `StoreUnreachable` until the location is open."""
        if self.location_id is None:
            raise StoreUnreachable(
                f"the location of {self.catalog} can't be read: {self._trouble}",
                hint=f"it is tried again every {_RETRY_SECONDS:.0f} s; see the conditions of the Catalog",
            )
        return super().client

    def open(self) -> None:
        """Opens the location. If it fails, the reason is kept for the pages. Blocking."""
        with about(self.catalog):
            try:
                self.found_id = str(super().client.location_id)
            except (HoldfastError, OSError) as error:
                self._trouble = redact(str(error))
                log.info("the location can't be opened: %s", error)


def name_of(catalog: ObjectKey) -> str:
    """Returns the name of a Catalog's place. A namespace has no dots, so no two Catalogs have the same."""
    return f"{catalog.namespace}.{catalog.name}"


@dataclass(frozen=True)
class _Made:
    """A place, and what it was made from."""

    place: CatalogPlace
    generation: object
    storage: Storage
    secret: str | None
    credentials: int


@dataclass
class _Claim:
    """The location that a Catalog names, and whether it was opened for the Catalog."""

    namespace: str
    stores: tuple[str, str]
    opened: bool = False
    location_id: str | None = None


class Locations(Mapping[str, ShownPlace]):
    """The places of all Catalogs by their names. For one event loop."""

    def __init__(
        self,
        kube: Kube,
        resources: Resources,
        *,
        data_dir: Path | None = None,
        allowed: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._resources = resources
        self._data_dir = data_dir
        self._allowed = tuple(allowed)
        self._clock = clock
        self._made: dict[str, _Made] = {}
        self._claims: dict[str, _Claim] = {}
        """Those of all Catalogs, also of one that has no place for now."""
        self._opening: dict[str, tuple[float, Future[None]]] = {}
        """When each place was last tried, and how that goes."""
        self._seen = -1
        self._secrets_read = clock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="open")

    def __getitem__(self, name: str) -> ShownPlace:
        return self._made[name].place

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._made))

    def __len__(self) -> int:
        return len(self._made)

    async def run(self, stop: asyncio.Event) -> None:
        """Keeps the places up to date until `stop` is set."""
        while not stop.is_set():
            try:
                await self.refresh()
            except Exception:
                log.exception("the locations can't be brought up to date")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _PAUSE)

    async def refresh(self) -> None:
        """Makes the places of new and changed Catalogs, drops those of others, and opens what isn't open."""
        now = self._clock()
        renew = now - self._secrets_read >= _SECRETS_SECONDS
        version = self._resources.version()
        if version != self._seen or renew:
            try:
                bodies = self._resources.all(Kind.CATALOG)
            except NotListed:
                return
            wanted = {name_of(key): (key, body) for body in bodies for key in [_key(body)]}
            for name in (self._made.keys() | self._claims.keys()) - wanted.keys():
                self._claims.pop(name, None)
                self._drop(name, forget=True)
            for name, (key, body) in wanted.items():
                await self._bring_up_to_date(name, key, body, renew=renew)
                if (claim := self._claims.get(name)) is not None and "shardId" in body.get("status", {}):
                    claim.opened = True
            self._seen = version
            if renew:
                self._secrets_read = now
        self._group()
        self._open(now)

    async def _bring_up_to_date(self, name: str, key: ObjectKey, body: Any, *, renew: bool) -> None:
        before = self._made.get(name)
        generation = body["metadata"].get("uid"), body["metadata"].get("generation")
        if before is not None and before.generation == generation and not (renew and before.secret):
            return
        spec, _ = parse_spec(CatalogSpec, body)
        storage = None
        if spec is not None:
            storage = await asyncio.to_thread(resolve, spec, key.namespace, self._data_dir, self._allowed)
        if not isinstance(storage, Storage):
            # The conditions of the Catalog say why.
            self._claims.pop(name, None)
            self._drop(name)
            return
        claim = self._claims.get(name)
        if claim is None or claim.stores != storage.stores:
            self._claims[name] = _Claim(key.namespace, storage.stores)
        credentials = NO_CREDENTIALS
        try:
            if storage.secret is not None:
                credentials = await credentials_of(self._kube, key, storage, None)
        except (SecretNotFound, BadInput) as error:
            log.info("%s: %s", key, error)
            self._drop(name)
            return
        except KubeError as error:
            log.warning("the Secret of %s can't be read: %s", key, error)
            return
        same = (
            before is not None
            and before.storage == storage
            and (before.secret, before.credentials) == (storage.secret, credentials.version)
        )
        if same and before is not None:
            place = before.place
        else:
            self._drop(name)
            place = CatalogPlace(key, storage, credentials)
        self._made[name] = _Made(place, generation, storage, storage.secret, credentials.version)

    def _drop(self, name: str, *, forget: bool = False) -> None:
        self._opening.pop(name, None)
        if (made := self._made.pop(name, None)) is not None:
            if forget:
                forget_secrets(made.place.catalog)
            asyncio.get_running_loop().call_later(_CLOSE_SECONDS, self._threads.submit, made.place.close)

    def _open(self, now: float) -> None:
        """Starts to open what isn't open. `_group` sees what came of it."""
        for name, each in self._made.items():
            last = self._opening.get(name)
            if each.place.found_id is not None or (last is not None and not last[1].done()):
                continue
            if last is None or now - last[0] >= _RETRY_SECONDS:
                self._opening[name] = now, self._threads.submit(each.place.open)

    def _group(self) -> None:
        """Gives each place the namespaces of all Catalogs that opened its location, and then its client."""
        namespaces: defaultdict[object, set[str]] = defaultdict(set)
        made = [(each, each.place.found_id) for each in self._made.values()]
        for each, found_id in made:
            if found_id is not None:
                namespaces[found_id].add(each.place.catalog.namespace)
                claim = self._claims[name_of(each.place.catalog)]
                # A Catalog may name another location by now, while its new Secret can't be read.
                if claim.stores == each.storage.stores:
                    claim.opened, claim.location_id = True, found_id
        for claim in self._claims.values():
            if claim.opened:
                namespaces[claim.stores].add(claim.namespace)
            if claim.location_id is not None:
                namespaces[claim.location_id].add(claim.namespace)
        for each, found_id in made:
            found = {each.place.catalog.namespace} | namespaces[each.storage.stores]
            if found_id is not None:
                found |= namespaces[found_id]
            each.place.namespace = SHARED.join(sorted(found))
            each.place.location_id = found_id

    def close(self) -> None:
        """Closes all places. Doesn't wait for calls that run."""
        for made in self._made.values():
            self._threads.submit(made.place.close)
        self._threads.shutdown(wait=False)


def _key(body: Any) -> ObjectKey:
    return ObjectKey(Kind.CATALOG, body["metadata"]["namespace"], body["metadata"]["name"])
