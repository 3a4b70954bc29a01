"""Writers of one shard that are killed at seeded moments and restarted, while a reader listens.

The seed determines the appends, and when a writer is killed: how many notes of its journal come first, and
how long after them. The machine's own timing isn't determined. So the same seed gives the same campaign, but
not the same interleaving.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from crash.nursery import Life, Nursery
from crash.oracle import Answer, Attempt, Row, Seen, attempts_in, judge
from crash.tally import Tally
from crash.writer import SCHEMA, Order, config
from holdfast.errors import CorruptBlob, StorageError
from holdfast.persist import PersistClient, Progress, Updates, WriteMode

SHARD = "s00000000-0000-4000-8000-000000000001"
WRITERS = 3
LAST_APPENDS = 4
"""What each writer does in its last life, which ends by itself."""
_LONG_LIFE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Place:
    """The stores of a campaign."""

    blob: str
    consensus: str
    disturb: Callable[[], None] | None = None
    """Fails over or restarts a server that the stores need."""

    def open(self) -> PersistClient:
        """A client."""
        return PersistClient.open(blob=self.blob, consensus=self.consensus, config=config())


class Listener:
    """Hears a shard from its beginning, letting it forget what was heard."""

    def __init__(self, client: PersistClient, *, seals: bool = False) -> None:
        if seals:
            seal(client, 1)
        else:
            client.writer(SHARD, SCHEMA, purpose="creation").seal(1)
        self._reader = client.reader(SHARD, purpose="listener")
        self._listen = self._reader.listen(0)
        self._until: int | None = None
        self.heard: list[tuple[Row, int, int]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="listener")
        self._done = self._thread.submit(self._follow)

    def hear_until(self, upper: int) -> list[tuple[Row, int, int]]:
        """All updates at times below `upper`."""
        self._until = upper
        self._done.result(120)
        self._thread.shutdown()
        return self.heard

    def _follow(self) -> None:
        frontier = 1
        while self._until is None or frontier < self._until:
            try:
                events = self._listen.next(timeout=0.1)
            except CorruptBlob:
                raise
            except StorageError:
                continue  # its server is gone: ask again
            for event in events:
                match event:
                    case Updates(table):
                        self.heard += _rows_of(table, frontier)
                    case Progress(upper):
                        assert upper > frontier, "a listener's frontier went back"
                        frontier = upper
            if events:
                # Only when they are taken in: they come once. Without its server it is for the next round.
                with suppress(StorageError):
                    self._reader.allow_compaction(frontier - 1)


def seal(client: PersistClient, upper: int) -> None:
    """Take the write lock from whoever has it, and seal the shard up to `upper`."""
    with client.exclusive("campaign", purpose="seal", take_over=True):
        client.writer(SHARD, SCHEMA, purpose="seal", mode=WriteMode.WRITE_SEAL).seal(upper)


def _rows_of(table: pa.Table, frontier: int) -> list[tuple[Row, int, int]]:
    found = []
    for row in table.to_pylist():
        assert row["_time"] >= frontier, "a listener was given an update behind its frontier"
        found.append((_row(row), row["_time"], row["_diff"]))
    return found


def _row(row: dict[str, Any]) -> Row:
    return Row(row["writer"], row["number"], row["row"], row["rows"])


class Campaign:
    """The writers of one shard; `check` is the end of it."""

    def __init__(
        self, place: Place, nursery: Nursery, seed: int, *, writers: int = WRITERS, seals: bool = False
    ) -> None:
        """With `seals` the writers write to be sealed, and take the write lock from each other."""
        self._place = place
        self._seals = seals
        self.deaths = self.disturbances = 0
        self._nursery = nursery
        self._seed = seed
        self._births = 0
        self._lock = threading.Lock()
        self.writers = [f"w{number}" for number in range(writers)]
        self.attempts: list[Attempt] = []
        self._client = place.open()
        self._listener = Listener(self._client, seals=seals)

    def start(self, writer: str, *, count: int = _LONG_LIFE, **settings: Any) -> Life:
        """A writer's next life."""
        with self._lock:
            self._births += 1
            order = Order(
                blob=self._place.blob,
                consensus=self._place.consensus,
                shard=SHARD,
                writer=writer,
                journal=f"{self._seed}-{self._births}",
                seed=self._seed,
                first=self._births * _LONG_LIFE,
                count=count,
                seals=self._seals,
                **settings,
            )
            return self._nursery.bear(order)

    def end(self, writer: str, life: Life, *, kill: bool = False) -> None:
        """Wait for the end of a life, or make it, and take its journal."""
        if kill:
            life.kill()
        else:
            for _ in life.notes():
                pass
            life.check()
            assert life.ended_well, f"writer {writer} ended by itself; it last said {life.lines[-1:]}"
        with self._lock:
            self.attempts += attempts_in(writer, life.lines)

    def kill_and_restart(self, kills: int, *, disturb_every: int = 0, **settings: Any) -> None:
        """Let all writers live at once, kill them `kills` times in all, and let each end in peace.

        After each `disturb_every` deaths, whosever they are, a server of the place fails over or restarts.
        """
        shares = [
            kills // len(self.writers) + (n < kills % len(self.writers)) for n in range(len(self.writers))
        ]

        def lives(writer: str, deaths: int) -> None:
            moments = random.Random(f"{self._seed}/{writer}")
            for _ in range(deaths):
                life = self.start(writer, **settings)
                self._wait_for_the_moment(life, moments)
                self.end(writer, life, kill=True)
                with self._lock:
                    self.deaths += 1
                    is_due = disturb_every > 0 and self.deaths % disturb_every == 0
                if is_due:
                    self._disturb()
            self.end(writer, self.start(writer, count=LAST_APPENDS, **settings))

        with ThreadPoolExecutor(len(self.writers)) as pool:
            list(pool.map(lives, self.writers, shares))

    def _disturb(self) -> None:
        if self._place.disturb is not None:
            self._place.disturb()
            with self._lock:
                self.disturbances += 1

    def tally(self) -> Tally:
        """What was done until now."""
        answers = Counter(attempt.answer for attempt in self.attempts)
        return Tally(
            operations=answers[Answer.DONE],
            unknown=answers[Answer.UNKNOWN] + answers[Answer.NONE],
            kills=self.deaths,
            disturbances=self.disturbances,
        )

    def kill_all(self, lives: Sequence[Life]) -> None:
        """Kill the life of each writer."""
        for writer, life in zip(self.writers, lives, strict=True):
            self.end(writer, life, kill=True)

    def _wait_for_the_moment(self, life: Life, moments: random.Random) -> None:
        notes = moments.randrange(1, 20)
        for _, _ in zip(range(notes), life.notes(), strict=False):
            pass
        # Not to wait for anything: the moment itself is what is random.
        time.sleep(moments.choice((0.0, moments.uniform(0.0, 0.005))))

    def upper(self) -> int:
        """The upper of the shard, linearized."""
        return self._client.recent_upper(SHARD)

    def check(self) -> None:
        """Raise `AssertionError` unless the shard holds what the writers were promised."""
        with self._place.open() as fresh:
            if self._seals:
                latest = max((attempt.at for attempt in self.attempts), default=0)
                seal(fresh, max(latest + 1, fresh.recent_upper(SHARD)))
            upper = fresh.recent_upper(SHARD)
            heard = self._listener.hear_until(upper)
            reader = fresh.reader(SHARD, purpose="check")
            contents = {_row(row): row["_diff"] for row in reader.snapshot(upper - 1).to_table().to_pylist()}
        self._client.close()
        judge(self.attempts, Seen(heard, contents, upper), tiles=not self._seals)
