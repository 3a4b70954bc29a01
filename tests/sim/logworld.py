"""Several processes that share a log of S3 objects, by one seed.

They append, read, truncate, sleep and die. At every request to the object store, other processes may run. A
put may be slow, and land after its sender gave up. Every append has a unique payload, so the remaining log
shows what happened.

In some worlds the bucket returns once to an older state. Then only commits that were acknowledged since that
state may be lost. Some cases are excluded, because nobody can prevent them: a deletion or a new floor that is
in flight while the bucket is restored, and a late put of an append that was refused before.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from conformance.objectstore import Bucket, MemoryObjects
from holdfast.errors import CorruptBlob, Determinate, Indeterminate, StoreUnreachable
from holdfast.persist import Clock
from holdfast.persist.stores import Consensus, Put
from holdfast.persist.stores.log_codec import FLOOR_NAME
from holdfast.persist.stores.objects import NO_TAG, Found
from holdfast.persist.stores.s3_log import S3LogConsensus
from sim.ids import seeded_ids
from sim.scheduler import Scheduler

T = TypeVar("T")

KEYS = ("a", "b", "c")


class Dead(BaseException):
    """The process has died."""


class LogClock(Clock):
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def monotonic(self) -> float:
        return self._scheduler.now

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(seconds)


class SimObjects(MemoryObjects):
    """The bucket as one process sees it, with the world's weather."""

    def __init__(self, world: "LogWorld") -> None:
        super().__init__(world.bucket, self._weather)
        self._world = world
        self._is_dead = False
        self._restored = 0

    def get(self, name: str, tag: str = NO_TAG) -> Found | None:
        if name == FLOOR_NAME:
            self._restored = self._world.restored
        return super().get(name, tag)

    def delete(self, names: Sequence[str]) -> None:
        if not self._world.restores:
            super().delete(names)
            return
        # All at once: the weather is for what comes before.
        self.before("delete", names[0])
        if self._restored == self._world.restored:
            self._quietly(lambda: super(SimObjects, self).delete(names))

    def create(self, name: str, data: bytes) -> str:
        return self._slow(f"create {name}", lambda: super(SimObjects, self).create(name, data))

    def replace(self, name: str, data: bytes, tag: str) -> bool:
        restored = self._restored

        def replace() -> bool:
            if not self._world.restores:
                return super(SimObjects, self).replace(name, data, tag)
            self.before("replace", name)
            if restored != self._world.restored:
                return False
            return self._quietly(lambda: super(SimObjects, self).replace(name, data, tag))

        return self._slow(f"replace {name}", replace)

    def together(self, asks: Sequence[Callable[[], T]]) -> list[T]:
        """One after the other, in any order."""
        found: dict[int, T] = {}
        restored = self._world.restored
        for number in self._world.random.sample(range(len(asks)), len(asks)):
            found[number] = asks[number]()
        self._restored = restored
        return [found[number] for number in range(len(asks))]

    def _slow(self, what: str, effect: Callable[[], T]) -> T:
        world = self._world
        if not self._is_dead and world.random.random() < world.slow_rate:
            world.scheduler.note(f"slow {what}")
            world.scheduler.later(what, lambda: self._quietly(effect))
            raise Indeterminate(f"{what}: no answer came in time")
        done = effect()
        world.scheduler.note(f"{what} -> {bool(done)}")
        world.scheduler.pause()
        return done

    def _quietly(self, effect: Callable[[], T]) -> T:
        held, self.before = self.before, lambda *_: None
        done = effect()
        self.before = held
        return done

    def _weather(self, request: str, name: str) -> None:
        world = self._world
        if self._is_dead:
            raise Dead
        if world.random.random() < world.death_rate:
            self._is_dead = True
            raise Dead
        if world.restores and world.random.random() < 0.004:
            world.restore()
        if world.random.random() < world.error_rate:
            raise Determinate(f"{request} {name}: injected fault")
        if world.random.random() < 0.02:
            world.scheduler.sleep(world.random.random() * 0.3)  # the process is asleep for a while
        world.scheduler.pause()


class LogWorld:
    """The bucket, the processes and what they were told."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.random = self.scheduler.random
        self.bucket = Bucket()
        self.slow_rate = self.random.choice([0.0, 0.05, 0.15])
        self.death_rate = self.random.choice([0.0, 0.0, 0.005])
        self.error_rate = self.random.choice([0.0, 0.02])
        self.every = self.random.randint(1, 4)
        self.claims: list[Put] = []
        self.known: dict[str, int] = dict.fromkeys(KEYS, 0)
        self.unknown = 0
        self.refused: set[bytes] = set()
        self.restores = self.random.random() < 0.3
        # How often the bucket has returned to an older state; what it and the processes had at that state.
        self.restored = 0
        self._older: tuple[dict[str, Found], list[Put], dict[str, int]] | None = None

    def told(self) -> list[str]:
        """What the seed has chosen, for people."""
        names = ("slow_rate", "death_rate", "error_rate", "every", "restores")
        return ["weather", *(f"  {name} = {getattr(self, name)}" for name in names)]

    def met(self) -> Counter[str]:
        """How often this world met what worlds are made for."""
        told = {"steps acknowledged": len(self.claims), "buckets restored": self.restored}
        return Counter({**self.scheduler.met, **told})

    def restore(self) -> None:
        """Take a copy of the bucket, or put it back if there is one; once."""
        if self._older is None:
            self._older = dict(self.bucket.objects), list(self.claims), dict(self.known)
        elif not self.restored:
            self.restored = 1
            self.bucket.objects, self.claims, self.known = self._older
            self.refused.clear()
            self.scheduler.note("the bucket was restored")

    def open(self, objects: MemoryObjects) -> S3LogConsensus:
        return S3LogConsensus(objects, clock=LogClock(self.scheduler), checkpoint_every=self.every)

    def run(self) -> None:
        """Let all processes do their work, then judge what they were told."""
        count = self.random.randint(2, 4)
        with seeded_ids(random.Random(self.random.getrandbits(64))):
            self.open(MemoryObjects(self.bucket)).close()
            self.scheduler.run({f"p{n}": lambda n=n: self._process(n) for n in range(count)})  # type: ignore[misc]
            self.scheduler.land_all()
            self._judge()

    def _process(self, number: int) -> None:
        own = random.Random(self.random.getrandbits(64))
        left = 25
        incarnation = 0
        while left > 0:
            incarnation += 1
            try:
                store = self.open(SimObjects(self))
                while left > 0:
                    left -= 1
                    self._act(store, own, f"p{number}.{incarnation}.{left}".encode())
            except Dead:
                self.scheduler.note("died")
                self.unknown += 1
            except (Determinate, Indeterminate, StoreUnreachable) as error:
                self.scheduler.note(f"{error}")
            except CorruptBlob as error:
                if not self.restored:
                    raise
                self.scheduler.note(f"{error}")
                left -= 1

    def _act(self, store: Consensus, own: random.Random, payload: bytes) -> None:
        keys = own.sample(KEYS, own.randint(1, 2))
        known = {key: self.known[key] for key in keys}
        restored = self.restored
        heads = store.heads(keys)
        if restored != self.restored:
            return
        seqnos = {key: heads[key].seqno if key in heads else 0 for key in keys}
        behind = {key: seqno for key, seqno in seqnos.items() if seqno < known[key]}
        assert not behind, f"a read found {behind} after {known} was known"
        for key, seqno in seqnos.items():
            self.known[key] = max(self.known[key], seqno)
        if own.random() < 0.15:
            store.truncate(keys[0], seqnos[keys[0]])
            return
        if own.random() < 0.2:
            self.scheduler.sleep(own.random() * 0.3)
        puts = [Put(key, seqnos[key] + 1, payload) for key in keys]
        try:
            won = store.compare_and_set(puts)
        except Indeterminate:
            self.unknown += 1
            return
        except Determinate:
            won = False
        self.scheduler.note(f"append {payload!r} {[put.seqno for put in puts]} -> {won}")
        if restored != self.restored:
            return
        if not won:
            self.refused.add(payload)
            return
        self.claims += puts
        for put in puts:
            self.known[put.key] = max(self.known[put.key], put.seqno)

    def _what_is_left(self) -> S3LogConsensus:
        try:
            return self.open(MemoryObjects(self.bucket))
        except CorruptBlob:
            if not self.restored:
                raise
        return S3LogConsensus(MemoryObjects(self.bucket), for_recovery=True)

    def _judge(self) -> None:
        store = self._what_is_left()
        claimed = {(claim.key, claim.seqno): claim.data for claim in self.claims}
        assert len(claimed) == len(self.claims), "two writers were told that they wrote one entry"
        for key in KEYS:
            entries = store.scan(key, 0, 1 << 40)
            head = entries[-1].seqno if entries else 0
            assert head >= self.known[key], f"{key} ends at {head}, {self.known[key]} was known"
            for entry in entries:
                wanted = claimed.get((key, entry.seqno), entry.data)
                assert entry.data == wanted, f"entry {entry.seqno} of {key} is not as it was acknowledged"
                assert entry.data not in self.refused, f"entry {entry.seqno} of {key} was refused"
            assert len({entry.data for entry in entries}) == len(entries), "an append is in the log twice"
