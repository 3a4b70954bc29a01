"""Migrations of one catalog on real stores, by operators that are killed with SIGKILL at seeded places.

A library writes the catalog continuously. The catalog is Observed, so the operator only moves it. It goes
from the stash to persist and back repeatedly, each time with a new CatalogMigration. As long as kills are
left, every operator except the last one of a move is killed at a place that the seed chooses: at or after a
line of its log about a numbered step, or at any moment. Between a kill and the next start the stores are
checked, and sometimes a status is replaced by a wrong one.

The same seed gives the same places, but not the same interleaving.
"""

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

import psycopg

from crash.ledger import LibraryWriter
from crash.operators import Mark, OperatorLife, check_steps
from crash.resources import CATALOG, CATALOGS, MIGRATIONS, Resources
from crash.tally import Tally
from crash.twostores import DONE, PERSIST, ROLLED_BACK, STASH, Both, Contents, judge
from holdfast.catalog import catalog_shard_id, persist_catalog
from holdfast.catalog.move.linked import linked_catalog
from holdfast.catalog.move.truth import Backend, Strategy
from holdfast.catalog.one_store import stash_catalog
from holdfast.catalog.stores.persist import CatalogShard
from holdfast.catalog.stores.stash import StashStore
from holdfast.persist import PersistClient
from testbed.kube import ControlPlane
from testbed.minio import Minio
from testbed.postgres import PostgresServer

_PATIENCE_S: Final = 180.0
_BOOT_S: Final = 4.0
_NAMES: Final = {Strategy.ONE_TOMBSTONE: "OneTombstone", Strategy.TWO_TOMBSTONES: "TwoTombstones"}
_STEPS: Final = {Strategy.ONE_TOMBSTONE: 6, Strategy.TWO_TOMBSTONES: 7}
_JUDGE: Final = "judge"


@dataclass(frozen=True)
class Servers:
    """What a campaign runs on. The two URLs are of Postgres, with user and password."""

    cluster: ControlPlane
    stash: str
    consensus: str
    blob: str
    credentials: Mapping[str, str]
    """The environment of a client of the blobs."""


@contextmanager
def servers_of(
    cluster: ControlPlane, postgres: PostgresServer, minio: Minio, bucket: str
) -> Iterator[Servers]:
    """Fresh databases and a bucket on running servers; our environment has the credentials of `minio`."""
    with postgres.database() as stash, postgres.database() as consensus:
        yield Servers(
            cluster=cluster,
            stash=postgres.url(stash),
            consensus=postgres.url(consensus),
            blob=f"s3://{bucket}/blob?endpoint={minio.endpoint}",
            credentials=minio.credentials,
        )


@dataclass(frozen=True)
class Way:
    """A move of the catalog, there or back."""

    name: str
    migration_id: str
    back: bool

    @property
    def destination(self) -> str:
        """Where the catalog is at its end."""
        return STASH if self.back else PERSIST

    @property
    def record(self) -> int:
        """What is on record at its end."""
        return ROLLED_BACK if self.back else DONE

    @property
    def phase(self) -> str:
        """What the status says at its end."""
        return "RolledBack" if self.back else "Completed"

    def __str__(self) -> str:
        return "back" if self.back else "there"


class Moves:
    """One catalog and its operators; a context manager that ends them."""

    def __init__(self, servers: Servers, folder: Path, seed: int) -> None:
        self._servers = servers
        self._folder = folder
        self._rng = random.Random(seed)
        self._strategy = Strategy.TWO_TOMBSTONES if seed % 2 else Strategy.ONE_TOMBSTONE
        self._seed = seed
        self._organization = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        self._resources = Resources(servers.cluster, f"killed-{uuid.uuid4().hex[:12]}")
        self._births = 0
        self._life: OperatorLife | None = None
        self._deck: list[Mark | None] = []
        self._lied = False
        self.deaths: Counter[str] = Counter()
        """How often an operator was killed at which place."""
        self.lies = 0
        """How often a status was doctored before an operator was started."""

    def __enter__(self) -> Self:
        with ExitStack() as unless_entered:
            unless_entered.enter_context(self._resources)
            self._make_catalog()
            unless_entered.callback(self._end_operator)
            client = unless_entered.enter_context(
                PersistClient.open(
                    blob=self._servers.blob,
                    consensus=_called(self._servers.consensus),
                )
            )
            stash = _called(self._servers.stash)
            catalog = linked_catalog(
                stash_catalog(stash),
                persist_catalog(client, self._organization),
                backend=Backend.STASH,
                strategy=self._strategy,
            )
            self.writer = unless_entered.enter_context(LibraryWriter(catalog))
            self._stores = (
                StashStore(stash, read_only=True),
                CatalogShard(client, catalog_shard_id(self._organization), purpose=_JUDGE),
            )
            for store in self._stores:
                unless_entered.callback(store.close)
            self._sessions = unless_entered.enter_context(
                psycopg.connect(_called(self._servers.stash), autocommit=True)
            )
            self._ends = unless_entered.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def report(self) -> list[str]:
        """What was done, for people."""
        places = ", ".join(f"{place}: {times}" for place, times in sorted(self.deaths.items()))
        lies = f"{self.lies} lies in a status"
        return [
            f"killed operators, seed {self._seed}, {_NAMES[self._strategy]}: {self.deaths.total()} kills",
            f"  {places}",
            f"  {lies}, {self.writer.acknowledged()} writes, {self.writer.reopened} reopens",
        ]

    def tally(self) -> Tally:
        """What was done until now."""
        return Tally(operations=self.writer.acknowledged(), kills=self.deaths.total())

    def run(self, kills: int) -> None:
        """Move the catalog there and back until so many operators were killed; it ends in the stash."""
        number = 0
        while kills > 0:
            number += 1
            for back in (False, True):
                way = Way(f"move-{number}", f"{self._resources.namespace}/move-{number}", back)
                if self._life is not None:
                    self._life.turn_the_page()
                self._ask_for(way)
                kills = self._go(way, kills)
        self._resources.delete_all()

    def _go(self, way: Way, kills: int) -> int:
        """One move; how many kills are left."""
        while kills > 0 and not self._is_over(way):
            self._start_anew_with_a_lie(way)
            self._wait_for_the_moment(way)
            self._kill(way)
            kills -= 1
        began_over = self._life is None and self._is_over(way)
        self._start_anew_with_a_lie(way)
        assert self._life is not None
        self._life.wait_until(lambda: self._is_over(way), f"the way {way} is over")
        self._life.wait_until(lambda: self._tells(way), f"the status tells the way {way}")
        check_steps(self._life.marks(way.migration_id))
        if began_over:
            assert not list(self._life.marks(way.migration_id)), "a step of what was over was begun"
        self._lied = False
        self._judge(way)
        written = self.writer.acknowledged()
        self._life.wait_until(lambda: self.writer.acknowledged() > written, "the writer goes on")
        return kills

    def _wait_for_the_moment(self, way: Way) -> None:
        life = self._life
        assert life is not None
        place = self._draw()
        if place is None:
            _pause(self._rng.uniform(0.0, _BOOT_S))
            return
        ended = f"{way.migration_id}: all steps are done"
        life.wait_until_it_says(f"{way.migration_id}: {place}.", ended)
        _pause(self._rng.choice((0.0, self._rng.uniform(0.0, 0.03), self._rng.uniform(0.0, 0.2))))

    def _draw(self) -> Mark | None:
        """The next place to die at; None is any moment. Every one comes before any comes again."""
        if not self._deck:
            last = _STEPS[self._strategy]
            self._deck = [None, *(Mark("begins", n) for n in range(1, last + 1)), Mark("did", last)]
            self._rng.shuffle(self._deck)
        return self._deck.pop()

    def _start_anew_with_a_lie(self, way: Way) -> None:
        """Start an operator unless one lives; every other time the status is a lie by then."""
        if self._life is not None:
            return
        if self._births % 2:
            self._lie(way)
        self._births += 1
        login = _user_of(self._servers.consensus, "PGUSER", "PGPASSWORD")
        self._life = OperatorLife(
            self._servers.cluster,
            self._resources.namespace,
            self._folder,
            self._births,
            {**self._servers.credentials, **login},
        )

    def _kill(self, way: Way) -> None:
        assert self._life is not None
        life = self._life
        assert life.child.poll() is None, f"the operator ended by itself:\n{life.tail()}"
        self._end_operator()
        marks = list(life.marks(way.migration_id))
        check_steps(iter(marks))
        last = next((mark for mark in reversed(marks) if mark is not None), None)
        at = "before its first step" if last is None else _where(last)
        self.deaths[f"{way}, {at}"] += 1
        self._wait_until_it_is_dead_in_postgres()
        self._judge(way)

    def _end_operator(self) -> None:
        if self._life is not None:
            self._life.kill()
            self._life = None

    def _wait_until_it_is_dead_in_postgres(self) -> None:
        """What it had asked for last happens until its sessions are gone, and never after."""
        names = [urlsplit(url).path.strip("/") for url in (self._servers.stash, self._servers.consensus)]
        deadline = time.monotonic() + _PATIENCE_S
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = ANY(%s) AND application_name <> %s"
        while (row := self._sessions.execute(query, (names, _JUDGE)).fetchone()) != (0,):
            assert time.monotonic() < deadline, f"{row} sessions of a dead operator"
            threading.Event().wait(0.01)

    def _both(self) -> Both:
        stash, persist = self._stores
        return Both(Contents.read(stash), Contents.read(persist))

    def _is_over(self, way: Way) -> bool:
        # On record in the stash alone, which is faster to ask than both.
        config = Contents.read(self._stores[0]).config
        return config.get(f"migration/{way.migration_id}") == way.record

    def _judge(self, way: Way) -> None:
        before = self.writer.answers()
        both = self._both()
        judge(both, before, self.writer.answers())
        record = both.record(way.migration_id)
        if record == way.record:
            assert both.truth == way.destination, f"{way} is over, and the truth is {both.truth}"
        if not self._lied:
            # What is shown may be late, but isn't ahead.
            status = self._resources.status(MIGRATIONS, way.name)
            if status.get("phase") == way.phase:
                assert record == way.record, f"the status says {way.phase}, and the record is {record}"
            if status.get("sourceOfTruth") == way.destination:
                assert both.truth == way.destination, f"the status says {way.destination}"

    def _tells(self, way: Way) -> bool:
        """Whether the statuses say what is in the stores."""
        both = self._both()
        status = self._resources.status(MIGRATIONS, way.name)
        conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
        return (
            status.get("phase") == way.phase
            and status.get("sourceOfTruth") == both.truth == way.destination
            and status.get("strategy") == _NAMES[self._strategy]
            and status.get("migrationId") == way.migration_id
            and status.get("stashEpoch", 0) <= both.stash.epoch
            and status.get("persistEpoch", 0) <= both.persist.epoch
            and conditions.get(way.phase) == conditions.get("Ready") == "True"
            and self._resources.status(CATALOGS, CATALOG).get("sourceOfTruth") == both.truth
        )

    def _lie(self, way: Way) -> None:
        """Say of what is over that it was never begun, and of the rest that it is over."""
        if self._is_over(way):
            other = STASH if way.destination == PERSIST else PERSIST
            self._resources.doctor(way.name, phase="Pending", sourceOfTruth=other)
        else:
            self._resources.doctor(
                way.name,
                phase=way.phase,
                step=f"{_STEPS[self._strategy]}. set the tombstone",
                sourceOfTruth=way.destination,
                stashEpoch=1 << 40,
                persistEpoch=1 << 40,
                conditions=[
                    {
                        "type": type_,
                        "status": "True",
                        "reason": "MigrationCompleted",
                        "message": "a lie",
                        "lastTransitionTime": "2020-01-01T00:00:00Z",
                    }
                    for type_ in ("Ready", way.phase)
                ],
            )
        self._lied = True
        self.lies += 1

    def _make_catalog(self) -> None:
        servers = self._servers
        self._resources.make_catalog(
            _user_of(servers.stash, "user", "password"),
            organizationId=self._organization,
            access="Observed",
            backend=STASH,
            storage={"blob": servers.blob, "consensus": _without_user(servers.consensus)},
            stash={"url": _without_user(servers.stash)},
            migrationStrategy=_NAMES[self._strategy],
        )

    def _ask_for(self, way: Way) -> None:
        if way.back:
            self._resources.roll_back(way.name)
        else:
            verify = self._rng.choice(("None", "Compare"))
            self._resources.make_migration(
                way.name, target=PERSIST, verify=verify, timeout="1h", migrationId=way.migration_id
            )


def _where(mark: Mark) -> str:
    return f"in step {mark.number}" if mark.word == "begins" else f"after step {mark.number}"


def _called(url: str) -> str:
    """The URL of sessions of ours."""
    return f"{url}?application_name={_JUDGE}"


def _user_of(url: str, user: str, password: str) -> dict[str, str]:
    """User and password of a URL, under these names."""
    parts = urlsplit(url)
    return {user: parts.username or "", password: parts.password or ""}


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.hostname}:{parts.port}").geturl()


def _pause(seconds: float) -> None:
    """Not to wait for anything: the moment itself is what is random."""
    time.sleep(seconds)
