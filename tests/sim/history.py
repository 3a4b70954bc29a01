"""The results that the simulated processes got, and the check that they are consistent.

Each write carries its own marker row, which nobody retracts. So the contents at the end show which writes
happened. Then every read at any time must return the contents that those writes make.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Any, Final

from holdfast.errors import CLOSED
from sim.audit import Violation
from sim.serializability import Fate, Transaction, check
from sim.story import short

MARKER = -1
Row = tuple[int, str]
Update = tuple[int, str, int, int]
"""Key, value, time, diff."""
NOTHING: Final[Mapping[str, Sequence[Update]]] = MappingProxyType({})


@dataclass(slots=True)
class Write:
    """An append to some shards, or a write: the times that it covers, its updates, when it was under way."""

    name: str
    shards: tuple[str, ...]
    lower: int
    upper: int
    updates: tuple[Update, ...]
    begun: int
    appended: bool = True
    ended: int | None = None
    fate: Fate = Fate.UNKNOWN
    found: dict[str, Counter[Row]] = field(default_factory=dict)
    """What its writer had read of some shards, which nobody changed until the write."""


@dataclass(frozen=True, slots=True)
class Read:
    """A snapshot as it was read, at any time or at the newest."""

    who: str
    shard: str
    as_of: int
    contents: Counter[Row]
    begun: int
    ended: int
    newest: bool = False


@dataclass(slots=True)
class Followed:
    """What a listen has given so far: each update at a time from `lower` on and before `frontier`."""

    who: str
    shard: str
    lower: int
    frontier: int
    begun: int
    updates: Counter[tuple[int, str, int]] = field(default_factory=Counter)


class History:
    """All that was written and read."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._moments = count()
        self.writes: dict[str, Write] = {}
        self.reads: list[Read] = []
        self.followed: list[Followed] = []

    def begin(
        self,
        shards: Iterable[str],
        lower: int,
        upper: int,
        updates: Iterable[Update],
        *,
        begun: int | None = None,
        found: dict[str, Counter[Row]] | None = None,
        appended: bool = True,
    ) -> Write:
        """A write whose fate is not known yet; begun before, where it read something first."""
        name = f"write-{len(self.writes)}"
        own = ((MARKER, name, lower, 1), *updates)
        begun = self.now() if begun is None else begun
        write = Write(name, tuple(shards), lower, upper, own, begun, appended, found=found or {})
        self.writes[name] = write
        where = " ".join(map(short, write.shards)) or "nothing"
        self._tell(f"{name} to {where} at [{lower}, {upper}): {len(own)} updates")
        return write

    def end(self, write: Write, fate: Fate) -> None:
        """Note what the writer was told."""
        write.fate = fate
        write.ended = self.now()
        self._tell(f"-> {write.name} {fate.value}")

    def read(
        self, who: str, shard: str, as_of: int, found: Counter[Row], begun: int, *, newest: bool = False
    ) -> None:
        """Note what a reader was given who asked at `begun`."""
        self.reads.append(Read(who, shard, as_of, found, begun, self.now(), newest))
        self._tell(f"-> {short(shard)} at {as_of} has {sum(found.values())} rows")

    def now(self) -> int:
        """A number for this moment, greater than all before it."""
        return next(self._moments)

    def met(self) -> Counter[str]:
        """How much of what there is."""
        met = Counter(f"writes {write.fate.value}" for write in self.writes.values())
        met["writes to several shards"] = sum(len(write.shards) > 1 for write in self.writes.values())
        met["transactions that read and wrote"] = sum(
            bool(write.shards and write.found) and write.fate is Fate.DONE for write in self.writes.values()
        )
        met["transactions that read several shards"] = sum(
            len(write.found) > 1 and write.fate is Fate.DONE for write in self.writes.values()
        )
        met["snapshots of the newest"] = sum(read.newest for read in self.reads)
        met["snapshots"] = len(self.reads)
        met["changes followed"] = sum(len(listen.updates) for listen in self.followed)
        return met

    def judge(
        self, final: dict[str, Counter[Row]], *, given: Mapping[str, Sequence[Update]] = NOTHING
    ) -> None:
        """Compare everything with the contents at the end, by shard; `given` is what no write here made.

        Raises `Violation` for the first thing that can't be.
        """
        landed = {write.name for write in self.writes.values() if self._landed(write, final)}
        for shard, contents in final.items():
            writes = [w for w in self.writes.values() if w.name in landed and shard in w.shards]
            self._judge_order(shard, writes)
            updates = [*given.get(shard, ()), *(update for write in writes for update in write.updates)]
            _same(f"the contents of {shard} at the end", contents_of(updates, CLOSED - 1), contents)
            for read in self.reads:
                if read.shard == shard:
                    expected = contents_of(updates, read.as_of)
                    _same(f"{read.who}: {shard} at {read.as_of}", expected, read.contents)
            for listen in self.followed:
                if listen.shard == shard:
                    judge_listen(listen, updates)
        if all(write.appended for write in self.writes.values()):
            # What is written to be sealed is no transaction: it is done before anybody can see it.
            check(self.transactions(final))

    def transactions(self, final: dict[str, Counter[Row]]) -> list[Transaction]:
        """Everything as appends to lists and reads of them: a list for each shard, of its markers."""
        writes = [
            Transaction(
                write.name,
                write.begun,
                write.ended,
                dict.fromkeys(write.shards, write.name),
                {shard: self._list(found) for shard, found in write.found.items()},
                write.fate,
            )
            for write in self.writes.values()
        ]
        reads = [
            Transaction(
                f"read-{number} of {read.who}",
                read.begun,
                read.ended,
                reads={read.shard: self._list(read.contents)},
                of_the_past=not read.newest,
            )
            for number, read in enumerate(self.reads)
        ]
        moment = self.now()
        end = {shard: self._list(contents) for shard, contents in final.items()}
        return [*writes, *reads, Transaction("the end", moment, moment, reads=end)]

    def _list(self, contents: Counter[Row]) -> tuple[str, ...]:
        """The markers in the order of the times that their writers gave them."""
        names = [name for key, name in contents if key == MARKER]
        return tuple(sorted(names, key=lambda name: (self.writes[name].lower, name)))

    def _landed(self, write: Write, final: dict[str, Counter[Row]]) -> bool:
        if not write.shards:
            return write.fate is Fate.DONE
        copies = {final[shard][MARKER, write.name] for shard in write.shards}
        if copies not in ({0}, {1}):
            raise Violation(f"{write} is in {copies} times")
        landed = copies == {1}
        if write.fate is not Fate.UNKNOWN and landed != (write.fate is Fate.DONE):
            raise Violation(f"{write} was {write.fate.value}, and it {'did' if landed else 'did not'} happen")
        return landed

    def _judge_order(self, shard: str, writes: list[Write]) -> None:
        frontier = 0
        for write in sorted((w for w in writes if w.appended), key=lambda write: write.lower):
            if write.lower < frontier:
                raise Violation(f"{write} of {shard} covers times that were complete")
            frontier = write.upper


def contents_of(updates: Iterable[Update], as_of: int) -> Counter[Row]:
    """What updates add up to at a time."""
    contents: Counter[Row] = Counter()
    for key, value, time, diff in updates:
        if time <= as_of:
            contents[key, value] += diff
    return Counter({row: count for row, count in contents.items() if count})


def judge_listen(listen: Followed, updates: Iterable[Update]) -> None:
    """Raise `Violation` unless a listen gave the updates of its times, and nothing else."""
    expected: Counter[tuple[int, str, int]] = Counter()
    for key, value, time, diff in updates:
        if listen.lower <= time < listen.frontier:
            expected[key, value, time] += diff
    expected = Counter({row: count for row, count in expected.items() if count})
    what = f"{listen.who}: changes of {listen.shard} from {listen.lower} to {listen.frontier}"
    _same(what, expected, Counter({row: count for row, count in listen.updates.items() if count}))


def _same(what: str, expected: Counter[Any], found: Counter[Any]) -> None:
    if expected != found:
        missing = {row: count for row, count in expected.items() if found[row] != count}
        surplus = {row: count for row, count in found.items() if expected[row] != count}
        raise Violation(f"{what}: expected {missing}, found {surplus}")
