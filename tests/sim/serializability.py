"""Checks whether a history of list appends is strictly serializable.

It is if some order of all transactions explains it.

Each transaction appends unique elements to some lists, and reads some lists completely. The reads give the
order of each list, and with it these dependencies between a first and a second transaction:

- ww: the element of the first is before the element of the second in a list;
- wr: the element of the first is the last one that the second read;
- rw: the first read a list without the element of the second, which is the next one;
- rt: the first ended before the second began.

A history is strictly serializable exactly if these have no cycle. The anomalies are named as by Adya, and the
method is from Elle (Kingsbury and Alvaro, 2020). A transaction appends one element to a list, so no read can
find half of it. A read of a past time need not see transactions that ended before it began. All others must.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise


class Fate(Enum):
    """What the one who asked was told."""

    DONE = "done"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one process asked for at once: `reads` are what it found in lists before its own `appends`.

    `begun` and `ended` count events of the whole world; one that nobody was told about has no end.
    """

    name: str
    begun: int
    ended: int | None = None
    appends: Mapping[str, str] = field(default_factory=dict)
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fate: Fate = Fate.DONE
    of_the_past: bool = False

    def __str__(self) -> str:
        reads = [f"reads {list_} as [{' '.join(elements)}]" for list_, elements in self.reads.items()]
        appends = [f"appends {element} to {list_}" for list_, element in self.appends.items()]
        ended = "never told" if self.ended is None else f"to {self.ended}"
        return f"{self.name} ({self.begun} {ended}) {', '.join([*reads, *appends])}"


class Anomaly(AssertionError):
    """Something that no order of the transactions explains; `kind` is its name."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Edge:
    """`before` comes before `after`, because of `kind` (ww, wr, rw, rt) in a list."""

    before: str
    after: str
    kind: str
    why: str = ""


def check(transactions: Sequence[Transaction]) -> None:
    """Raise `Anomaly` for the worst thing that can't be."""
    known = {each.name: each for each in transactions}
    owners = _owners(transactions)
    for each in transactions:
        for list_, elements in each.reads.items():
            _check_elements(each, list_, elements, owners)
    orders = _orders(transactions)
    seen = {element for order in orders.values() for element in order}
    happened = {
        each.name: each
        for each in transactions
        if each.fate is Fate.DONE or not seen.isdisjoint(each.appends.values())
    }
    edges = [*_list_edges(happened, orders, owners), *_time_edges(happened.values())]
    cycle = _worst_cycle(edges, happened)
    if cycle is not None:
        kind, path = cycle
        steps = [f"\n  {known[edge.before]}\n    {edge.kind} {edge.why}".rstrip() for edge in path]
        raise Anomaly(
            kind, f"each of these comes before the next, and the last before the first{''.join(steps)}"
        )


def _owners(transactions: Iterable[Transaction]) -> dict[tuple[str, str], Transaction]:
    owners: dict[tuple[str, str], Transaction] = {}
    for each in transactions:
        for place in each.appends.items():
            if place in owners:
                raise ValueError(f"{each.name} and {owners[place].name} append the same element: {place}")
            owners[place] = each
    return owners


def _check_elements(
    reader: Transaction, list_: str, elements: Sequence[str], owners: Mapping[tuple[str, str], Transaction]
) -> None:
    for element in elements:
        owner = owners.get((list_, element))
        if owner is None:
            raise Anomaly("garbage read", f"nobody appended the last read {element} of {reader}")
        if owner.fate is Fate.REJECTED:
            raise Anomaly("G1a (aborted read)", f"{owner} did not happen, yet {reader}")
        if owner is reader:
            raise Anomaly("read of the future", f"{reader} found its own element before it was there")
    if len({*elements}) != len(elements):
        raise Anomaly("duplicate", f"an element is in {list_} twice: {reader}")


def _orders(transactions: Iterable[Transaction]) -> dict[str, tuple[str, ...]]:
    """The longest reading of each list; all others must be beginnings of it."""
    longest: dict[str, tuple[tuple[str, ...], Transaction]] = {}
    for each in transactions:
        for list_, elements in each.reads.items():
            if list_ not in longest or len(elements) > len(longest[list_][0]):
                longest[list_] = (elements, each)
    for each in transactions:
        for list_, elements in each.reads.items():
            order, other = longest[list_]
            if order[: len(elements)] != elements:
                raise Anomaly("incompatible orders", f"of {list_}: {each}, and {other}")
    return {list_: order for list_, (order, _) in longest.items()}


def _list_edges(
    happened: Mapping[str, Transaction],
    orders: Mapping[str, tuple[str, ...]],
    owners: Mapping[tuple[str, str], Transaction],
) -> Iterable[Edge]:
    unseen: defaultdict[str, list[Transaction]] = defaultdict(list)
    for each in happened.values():
        for list_, element in each.appends.items():
            if element not in orders.get(list_, ()):
                unseen[list_].append(each)
    for list_, order in orders.items():
        chain = [owners[list_, element].name for element in order]
        for first, second in pairwise(chain):
            yield Edge(first, second, "ww", f"(in {list_})")
        for other in unseen[list_]:
            # It is after all that anybody read.
            if chain:
                yield Edge(chain[-1], other.name, "ww", f"(in {list_}, where nobody saw the second)")
    for reader in happened.values():
        for list_, elements in reader.reads.items():
            chain = [owners[list_, element].name for element in orders[list_]]
            size = len(elements)
            if size:
                yield Edge(chain[size - 1], reader.name, "wr", f"(in {list_})")
            following = [chain[size]] if size < len(chain) else [other.name for other in unseen[list_]]
            for name in following:
                if name != reader.name:
                    yield Edge(reader.name, name, "rw", f"(in {list_}, without its element)")


def _time_edges(happened: Iterable[Transaction]) -> Iterable[Edge]:
    """As few as have the same effect: those that follow from others by time are left out."""
    ended = sorted((each for each in happened if each.ended is not None), key=lambda each: each.ended or 0)
    for later in sorted(happened, key=lambda each: each.begun):
        if later.of_the_past:
            continue
        newest_begun = -1
        for each in reversed(ended):
            assert each.ended is not None
            if each.ended >= later.begun:
                continue
            if each.ended < newest_begun:
                break
            # One of the past has nothing before it in time, so that it stands for nobody else.
            if not each.of_the_past:
                newest_begun = max(newest_begun, each.begun)
            yield Edge(each.name, later.name, "rt", f"({each.ended} is before {later.begun})")


def _worst_cycle(edges: Sequence[Edge], happened: Mapping[str, Transaction]) -> tuple[str, list[Edge]] | None:
    if not _has_cycle(edges):
        return None
    for kinds, kind in (("ww", "G0 (write cycle)"), ("ww wr", "G1c (circular information flow)")):
        path = _cycle([edge for edge in edges if edge.kind in kinds.split()])
        if path is not None:
            return kind, path
    dependent = [edge for edge in edges if edge.kind in ("ww", "wr")]
    for edge in edges:
        if edge.kind == "rw" and (rest := _path(dependent, edge.after, edge.before)) is not None:
            blind = not happened[edge.before].appends
            same = not blind and {*happened[edge.before].appends} & {*happened[edge.after].appends}
            return ("lost update" if same else "G-single (read skew)"), [edge, *rest]
    path = _cycle([edge for edge in edges if edge.kind != "rt"])
    if path is not None:
        return "G2 (write skew)", path
    path = _cycle(edges)
    assert path is not None
    return "real-time violation", path


def _has_cycle(edges: Iterable[Edge]) -> bool:
    after: defaultdict[str, list[str]] = defaultdict(list)
    waits: defaultdict[str, int] = defaultdict(int)
    for edge in edges:
        after[edge.before].append(edge.after)
        waits[edge.after] += 1
        waits[edge.before] += 0
    ready = [name for name, count in waits.items() if not count]
    done = 0
    while ready:
        done += 1
        for name in after[ready.pop()]:
            waits[name] -= 1
            if not waits[name]:
                ready.append(name)
    return done < len(waits)


def _cycle(edges: Sequence[Edge]) -> list[Edge] | None:
    """A shortest cycle."""
    if not _has_cycle(edges):
        return None
    paths = ([edge, *rest] for edge in edges if (rest := _path(edges, edge.after, edge.before)) is not None)
    return min(paths, key=len)


def _path(edges: Iterable[Edge], start: str, end: str) -> list[Edge] | None:
    """A shortest way from `start` to `end`."""
    after: defaultdict[str, list[Edge]] = defaultdict(list)
    for edge in edges:
        after[edge.before].append(edge)
    came: dict[str, Edge | None] = {start: None}
    queue = deque([start])
    while queue:
        name = queue.popleft()
        if name == end:
            path: list[Edge] = []
            while (edge := came[name]) is not None:
                path.append(edge)
                name = edge.before
            return path[::-1]
        for edge in after[name]:
            if edge.after not in came:
                came[edge.after] = edge
                queue.append(edge.after)
    return None
