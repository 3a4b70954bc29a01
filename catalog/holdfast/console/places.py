"""The locations of the console, opened for reading only.

A location is opened when it is first asked for. `ShownPlace.look` reads what the overview shows in
one read of the consensus store. The same read shows whether anything changed. Shards that didn't change since
the last look are not read again.
"""

import re
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Self, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.collections import CollectionInfo, CollectionState, JobRecord, StorageController
from holdfast.collections.controller_log import ControllerLog
from holdfast.collections.record.state import CommandRecord, ControllerState
from holdfast.errors import HandleExpired, HoldfastError, LogRegressed, StoreUnreachable
from holdfast.locations import is_name, location_url, named_location
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.state.machine import refresh_all
from holdfast.persist.state.state import ShardState
from holdfast.persist.stores import StoreMetrics
from holdfast.store_keys import AUTH, USER
from holdfast.text import SECRET_OPTION

T = TypeVar("T")

_RETRY_S: Final = 5.0
_WAIT_S: Final = 10.0
"""How long a look waits for the look of another thread."""
_CLOSE_S: Final = 1.0
_MOST_NAME: Final = 60
_LEAST_SECRET: Final = 4
_SHOWN: Final = frozenset({USER, AUTH})
"""Credentials that are no secrets."""


@dataclass(frozen=True, slots=True)
class PlaceLook:
    """What a location has at one moment: the records of its collections, and the state of their shards.

    `now_ms` is the store's clock, or the host's if the store has none. `taken_s` is the monotonic clock of
    this process.
    """

    now_ms: int
    taken_s: float
    collections: tuple[CollectionInfo, ...]
    jobs: Mapping[str, tuple[JobRecord, ...]]
    commands: tuple[CommandRecord, ...]
    states: Mapping[str, ShardState]

    def find(self, name: str) -> CollectionInfo | None:
        """The collection with this id, or else the one with this name.

        Anybody may name a collection like the id of another one. So ids come first, as for all readers.
        """
        found = next((each for each in self.collections if each.collection_id == name), None)
        return found or next((each for each in self.collections if each.name == name), None)


@dataclass(frozen=True, slots=True)
class _Records:
    """What a look takes from the records of a location, and the shards that they name."""

    collections: tuple[CollectionInfo, ...]
    jobs: Mapping[str, tuple[JobRecord, ...]]
    commands: tuple[CommandRecord, ...]
    shards: frozenset[str]

    @classmethod
    def of(cls, state: ControllerState) -> Self:
        live = [each for each in state.collections.values() if each.state is not CollectionState.DROPPED]
        jobs: dict[str, list[JobRecord]] = {}
        for job in sorted(state.jobs.values(), key=lambda job: (job.started_ms, job.job_id)):
            jobs.setdefault(job.object_id, []).append(job)
        return cls(
            tuple(sorted(live, key=lambda each: each.name)),
            {id_: tuple(found) for id_, found in jobs.items()},
            tuple(sorted(state.commands.values(), key=lambda each: each.at_ms)),
            frozenset(shard for each in live for shard in (each.metadata_shard, *each.data_shards)),
        )


class ShownPlace:
    """One location. Thread-safe.

    `name` stands for it in addresses, and `url` on pages: it has no secrets. `given` is its name in the
    configuration file, such as `@prod`, if it has one. `namespace` is the namespace of the resource
    that names the location, on a cluster.
    """

    def __init__(
        self,
        name: str,
        url: str,
        consensus: str | None = None,
        *,
        given: str = "",
        namespace: str = "",
        credentials: Mapping[str, str] | None = None,
        metrics: StoreMetrics | None = None,
    ) -> None:
        self.name = name
        self.namespace = namespace
        self.url = shown_url(url)
        self._given = given
        keys = (value for name, value in (credentials or {}).items() if name not in _SHOWN)
        self.secrets = frozenset([*secrets_of(url), *secrets_of(consensus or ""), *keys])
        self._url = url
        self._consensus = consensus
        self._credentials = credentials
        self._metrics = metrics
        self._opening = threading.Lock()
        self._looking = threading.Lock()
        self._client: PersistClient | None = None
        self._log: ControllerLog | None = None
        self._records: _Records | None = None
        self._records_upper = -1
        self._last: PlaceLook | None = None
        self._failed: tuple[float, HoldfastError] | None = None
        self._remembered: dict[Callable[[ShownPlace], Any], tuple[float, Any]] = {}

    @property
    def client(self) -> PersistClient:
        """The client, which writes nothing. Raises `NoLocation` and `StoreUnreachable`."""
        with self._opening:
            if self._client is None:
                whole = self._consensus is None
                self._client = PersistClient.open(
                    self._url if whole else None,
                    blob=None if whole else self._url,
                    consensus=self._consensus,
                    mode="read",
                    config=PersistConfig(retry_deadline_s=_RETRY_S),
                    credentials=self._credentials,
                    metrics=self._metrics,
                )
            return self._client

    @cached_property
    def controller(self) -> StorageController:
        """The controller of the location's collections."""
        return StorageController(self.client)

    @property
    def arguments(self) -> str:
        """The options with which a command names the location, without secrets: `--url ...`."""
        url = shlex.quote(self._given or self.url)
        if self._consensus is None or self._given:
            return f"--url {url}"
        return f"--url {url} --consensus {shlex.quote(shown_url(self._consensus))}"

    def look(self, max_age_s: float = 0.0) -> PlaceLook:
        """Return what the location has now, or what it had at most `max_age_s` seconds ago.

        If nothing changed, it is one read of the consensus store, for all collections together. Raises
        `StorageError`.
        """
        asked_s = time.monotonic()
        with self._alone():
            # A thread that waited for the look of another one uses its result, which is newer than the
            # question. So a store that doesn't respond keeps one thread busy, and not one after the other.
            if self._last is not None and self._last.taken_s >= asked_s - max_age_s:
                return self._last
            if self._failed is not None and self._failed[0] >= asked_s:
                raise self._failed[1]
            try:
                self._last = self._look(self._last)
            except (LogRegressed, HandleExpired):
                # The store went back to an earlier state. A new client continues with what it has now.
                self._forget()
                self._last = self._look(None)
            except HoldfastError as error:
                self._failed = time.monotonic(), error
                raise
            return self._last

    @property
    def latest(self) -> PlaceLook | None:
        """What the last look found; None if there was none."""
        return self._last

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other thread looks. A store that doesn't respond holds only one thread."""
        if not self._looking.acquire(timeout=_WAIT_S):
            raise StoreUnreachable(
                f"the location has not responded for {_WAIT_S:.0f} s",
                hint="wait a moment, then load it again",
            )
        try:
            yield
        finally:
            self._looking.release()

    def _forget(self) -> None:
        self.close()
        self._log = self._records = self._last = None
        self.__dict__.pop("controller", None)

    def _look(self, last: PlaceLook | None) -> PlaceLook:
        client = self.client
        if self._log is None:
            self._log = ControllerLog(client)
        records = self._log.shard_id
        wanted = {records, *(last.states if last else ())}
        taken_s = time.monotonic()
        states = self.states(wanted)
        if self._records is None or states[records].upper != self._records_upper:
            self._records = _Records.of(self._log.sync())
            self._records_upper = states[records].upper
        if not self._records.shards <= wanted:
            states = self.states({records, *self._records.shards})
        return PlaceLook(
            now_ms=client.store_or_host_ms(),
            taken_s=taken_s,
            collections=self._records.collections,
            jobs=self._records.jobs,
            commands=self._records.commands,
            states={shard: states[shard] for shard in (records, *sorted(self._records.shards))},
        )

    def states(self, shards: Iterable[str]) -> dict[str, ShardState]:
        """The newest states of shards, with one read of the consensus store. Raises `StorageError`."""
        machines = [self.client.session.machine(shard) for shard in sorted(shards)]
        return {state.shard_id: state for state in refresh_all(machines)}

    def remembered(self, ask: Callable[["ShownPlace"], T], max_age_s: float) -> T:
        """What `ask` returned at most `max_age_s` seconds ago, or returns now. Raises its errors."""
        asked_s = time.monotonic()
        known = self._remembered.get(ask)
        if known is None or known[0] < asked_s - max_age_s:
            known = self._remembered[ask] = asked_s, ask(self)
        found: T = known[1]
        return found

    def close(self) -> None:
        """Close the client. One that another thread is opening stays open if its store doesn't respond."""
        if not self._opening.acquire(timeout=_CLOSE_S):
            return
        client, self._client = self._client, None
        self._opening.release()
        if client is not None:
            client.close()


@dataclass(frozen=True)
class ShownPlaces:
    """The locations of a console, by their names."""

    all: Mapping[str, ShownPlace] = field(default_factory=dict)

    @classmethod
    def named(cls, urls: Sequence[str], consensus: str | None = None) -> "ShownPlaces":
        """The locations at these URLs, each with a short name of its own.

        A URL may also be a folder, or `@NAME` from the configuration file. `consensus` is the consensus store
        of the only URL. Raises `BadInput` for a name that the file doesn't have.
        """
        places: dict[str, ShownPlace] = {}
        for given in urls:
            url, of_it = given, consensus
            if is_name(given):
                known = named_location(given)
                url, of_it = known.url, known.consensus
            url = location_url(url)
            name = _free(short_name(given, url), places)
            places[name] = ShownPlace(name, url, of_it, given=given if is_name(given) else "")
        return cls(places)

    def __iter__(self) -> Iterator[ShownPlace]:
        return iter(self.all.values())

    def __len__(self) -> int:
        return len(self.all)

    @property
    def secrets(self) -> frozenset[str]:
        """What no page may show."""
        return secrets_of_all(self)

    def close(self) -> None:
        """Close all clients."""
        for each in self:
            each.close()


def secrets_of_all(places: Iterable[ShownPlace]) -> frozenset[str]:
    """What no page about these locations may show."""
    return frozenset(each for place in places for each in place.secrets if len(each) >= _LEAST_SECRET)


def short_name(given: str, url: str) -> str:
    """A short name for a location: its name in the configuration file, or the end of its URL."""
    if is_name(given):
        return given[1:]
    try:
        parts = urlsplit(url)
        path, host = unquote(parts.path), parts.hostname or ""
    except ValueError:
        path, host = "", ""
    last = next((each for each in reversed(path.split("/")) if each), "") or host
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip(".-")[:_MOST_NAME] or "location"


def _free(name: str, taken: Mapping[str, object]) -> str:
    """`name`, or the first of `name-2`, `name-3` and so on that is not taken."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free


def shown_url(url: str) -> str:
    """A URL for people: without a password, and without options except for plain ones."""
    try:
        parts = urlsplit(url)
        if not parts.netloc and parts.scheme != "file":
            return url if "@" not in url else "***"
        host = parts.netloc.rpartition("@")[2]
        user = parts.username or ""
    except ValueError:
        return "***"
    kept = [f"{name}={value}" for name, value in parse_qsl(parts.query) if name in ("endpoint", "region")]
    query = f"?{'&'.join(kept)}" if kept and not any("@" in each for each in kept) else ""
    if parts.scheme == "file":
        return unquote(parts.path)
    return f"{parts.scheme}://{f'{user}@' if user else ''}{host}{parts.path}{query}"


def secrets_of(url: str) -> Iterator[str]:
    """The passwords and keys in a URL, also as they are written in it."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
        password = parts.password
    except ValueError:
        return
    for each in (password, *(value for name, value in options if SECRET_OPTION.fullmatch(name))):
        if each:
            yield each
            yield unquote(each)
