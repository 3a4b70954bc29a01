"""The servers of a consensus store that fails over, and the history of each.

A promoted server begins with the state that the primary had some commits earlier: the lag of the standby. A
server keeps all rows that were ever its own, even truncated ones. They determine what is true on it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.persist.stores import Digest, Entry, MemoryConsensus, Put, digest_of
from sim.audit import Violation
from sim.history import Followed, Row, Update, Write, contents_of, judge_listen
from sim.reference import ShardState, apply, check_step, decode_diff, part_keys


@dataclass(frozen=True, slots=True)
class Version:
    """A row of a log, the append that made it, if one did, and the upper after it."""

    digest: Digest
    write: Write | None
    upper: int


@dataclass(frozen=True, slots=True)
class Moment:
    """What a server had after a commit or a truncation: what a standby may have."""

    logs: dict[str, list[Entry]]
    versions: dict[str, list[Version]]
    states: dict[str, ShardState]

    def named(self) -> set[str]:
        """The blobs that the newest versions name."""
        return {key for state in self.states.values() for key in named(state)}


@dataclass(frozen=True, slots=True)
class Read:
    """A snapshot that a client returned."""

    as_of: int
    contents: Counter[Row]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An append that a client returned from without an error."""

    write: Write


@dataclass(frozen=True, slots=True)
class Refused:
    """An append that a client refused for certain."""

    write: Write


Observation = int | Read | Followed | Acknowledged | Refused
"""What a client returned of a shard; a number is an upper."""


class Server:
    """One server: its logs, and its whole history."""

    def __init__(self, number: int, begun: Moment | None = None) -> None:
        self.number = number
        self.line = f"line{number}"
        self.consensus = MemoryConsensus()
        self.versions: dict[str, list[Version]] = {}
        self.states: dict[str, ShardState] = {}
        self.exposed: set[str] = set()
        """Shards of which somebody may have deleted what only this history names."""
        if begun is not None:
            self.consensus._logs.update({key: list(log) for key, log in begun.logs.items()})
            self.versions = {key: list(versions) for key, versions in begun.versions.items()}
            self.states = dict(begun.states)
        self.moments: list[Moment] = []
        self._keep()

    def state(self, shard: str) -> ShardState:
        """The newest version of a shard."""
        return self.states.get(shard) or ShardState(shard)

    def has(self, shard: str, seqno: int, digest: Digest) -> bool:
        """Whether a row was ever in the log of this server."""
        versions = self.versions.get(shard, [])
        return not seqno or (seqno <= len(versions) and versions[seqno - 1].digest == digest)

    def committed(self, puts: Sequence[Put], write: Write | None) -> None:
        """Take over versions that a compare-and-set has just made."""
        for put in puts:
            diff = decode_diff(put.data, put.key)
            old = self.state(put.key)
            if put.seqno != old.seqno + 1:
                raise Violation(f"{put.key}: version {put.seqno} was written after version {old.seqno}")
            new = apply(old, diff)
            check_step(old, new)
            appends = any(type(change).__name__ == "AppendBatch" for change in diff.changes)
            version = Version(digest_of(put.data), write if appends else None, new.upper)
            self.versions.setdefault(put.key, []).append(version)
            self.states[put.key] = new
        self._keep()

    def truncated(self, shard: str) -> None:
        """Check that what is left of a log begins not after its newest rollup."""
        rollup = self.state(shard).latest_rollup
        first = self.consensus._logs[shard][0].seqno
        if first > (rollup.seqno if rollup else 0) + 1:
            raise Violation(f"the log of {shard} begins at {first}, its newest rollup is {rollup}")
        self._keep()

    def updates(self, shard: str) -> list[Update]:
        """All updates of the history."""
        writes = [version.write for version in self.versions.get(shard, []) if version.write]
        return [update for write in writes for update in write.updates]

    def explains(self, shard: str, observations: Iterable[Observation]) -> str:
        """Why this history is not the one that a client has seen; empty if it is."""
        versions = self.versions.get(shard, [])
        updates = self.updates(shard)
        uppers = [0, *(version.upper for version in versions)]
        writes = [None, *(version.write for version in versions)]
        place = 0
        for seen in observations:
            match seen:
                case int():
                    if seen not in uppers[place:]:
                        return f"upper {seen} after version {place}"
                    place = uppers.index(seen, place)
                case Acknowledged(write):
                    if writes.count(write) != 1:
                        return f"{write.name} was acknowledged"
                    place = max(place, writes.index(write))
                case Refused(write):
                    if write in writes:
                        return f"{write.name} was refused"
                case Read(as_of, contents):
                    if as_of >= uppers[-1] or contents != contents_of(updates, as_of):
                        return f"a snapshot at {as_of} with {dict(contents)}"
                case Followed():
                    try:
                        judge_listen(seen, updates)
                    except Violation as violation:
                        return str(violation)
        return ""

    def _keep(self) -> None:
        logs = {key: list(log) for key, log in self.consensus._logs.items()}
        versions = {key: list(versions) for key, versions in self.versions.items()}
        self.moments.append(Moment(logs, versions, dict(self.states)))


def named(state: ShardState) -> set[str]:
    """The blobs that a version names."""
    return {*part_keys(state), *(rollup.blob_key for rollup in state.rollups.values())}
