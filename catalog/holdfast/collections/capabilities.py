"""Who may read and write a collection for as long as they need: capabilities that survive their processes.

- Leased holds end with the process that has them; these end when they are released, by whomever.
- One to read is a critical hold on the metadata shard: whoever holds that one's since holds the data. It is
  taken and released in one step with its entry in the collection's record, which tells who has it.
- One to write is the entry alone. It keeps the collection from being dropped; to give up the times below `f`
  is to seal the collection to `f`, for nobody writes there then.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from holdfast.collections.bringing import rendition_hold
from holdfast.collections.controller_log import ControllerLog
from holdfast.collections.record import collection_transitions as transitions
from holdfast.collections.record.jobs import JobRecord, hold_purpose
from holdfast.collections.record.spec import CollectionInfo, RenditionState
from holdfast.collections.record.state import ControllerState
from holdfast.collections.record.transitions import Origin
from holdfast.collections.retention import RETENTION_PURPOSE
from holdfast.collections.writer import CollectionWriter
from holdfast.errors import AsOfTooEarly, CollectionNotFound, HandleExpired, ShardFinalized
from holdfast.persist import PersistClient, Prepared
from holdfast.persist.checks import check_frontier, check_purpose
from holdfast.persist.state.inspect import HoldInfo, ShardInfo

Kind = Literal["read", "write"]


def read_purpose(purpose: str) -> str:
    """The purpose of the critical hold, on the metadata shard, of a capability to read."""
    return f"read: {purpose}"


@dataclass(frozen=True, slots=True)
class CollectionHold:
    """What somebody holds of a collection.

    `since` is the earliest time that a capability to read keeps (None: to write), `keeps` are the retired
    renditions that it keeps with it. A `durable` one ends when it is released, another `lease_s` seconds
    after its process. `age_ms` is the wall time since it was taken, None where nobody noted it. `own` ones
    are the collection's: its retention, and what renditions are filled from; it can be dropped nevertheless.
    """

    kind: Kind
    purpose: str
    who: str
    host: str
    durable: bool
    own: bool
    since: int | None
    age_ms: int | None
    lease_s: float | None
    keeps: tuple[str, ...]

    def __str__(self) -> str:
        return f"'{self.purpose}' on {self.host}" if self.host else f"'{self.purpose}'"


def _is_own(info: CollectionInfo, hold: HoldInfo) -> bool:
    """Whether a collection holds it of itself; a lease only while a rendition is being filled."""
    filling = {rendition_hold(each.id) for each in info.renditions}
    return hold.purpose in filling or (hold.kind == "critical" and hold.purpose == RETENTION_PURPOSE)


def collection_holds(
    info: CollectionInfo, shards: Mapping[str, ShardInfo], jobs: Iterable[JobRecord], now_ms: int
) -> tuple[CollectionHold, ...]:
    """All that is held of a collection, from its record and a look at each of its shards.

    What a reader or a job holds of data shards beside the metadata is not told again.
    """
    metadata = shards[info.metadata_shard].holds
    known = {(hold.purpose, hold.hostname) for hold in metadata}
    elsewhere = {
        (hold.purpose, hold.hostname): hold
        for shard_id in info.data_shards
        for hold in shards[shard_id].holds
        if (hold.purpose, hold.hostname) not in known
    }
    taken = {
        RETENTION_PURPOSE: info.created_ms,
        **{rendition_hold(each.id): each.created_ms for each in info.renditions},
        **{hold_purpose(job.job_id, job.attempt): job.started_ms for job in jobs},
    }
    told = [_told(info, hold, taken, now_ms) for hold in (*metadata, *elsewhere.values())]
    writers = [
        CollectionHold(
            kind="write",
            purpose=each.purpose,
            who=each.who,
            host=each.host,
            durable=True,
            own=False,
            since=None,
            age_ms=_age(each.acquired_ms, now_ms),
            lease_s=None,
            keeps=(),
        )
        for each in info.holders
        if each.writes
    ]
    return (*told, *writers)


def _age(since_ms: int | None, now_ms: int) -> int | None:
    """How long ago that was; no time where the wall clock is behind the one that noted it."""
    return None if since_ms is None else max(now_ms - since_ms, 0)


def _told(info: CollectionInfo, hold: HoldInfo, taken: Mapping[str, int], now_ms: int) -> CollectionHold:
    holder = next((h for h in info.holders if not h.writes and read_purpose(h.purpose) == hold.purpose), None)
    keeps = tuple(
        each.id for each in info.live if each.state is RenditionState.RETIRED and hold.since < each.held_to
    )
    since_ms = taken.get(hold.purpose) if holder is None else holder.acquired_ms
    return CollectionHold(
        kind="read",
        purpose=hold.purpose if holder is None else holder.purpose,
        who="" if holder is None else holder.who,
        host=hold.hostname if holder is None else holder.host,
        durable=hold.kind == "critical",
        own=_is_own(info, hold),
        since=hold.since,
        age_ms=_age(since_ms, now_ms),
        lease_s=hold.lease_s,
        keeps=keeps,
    )


class DurableHold:
    """A capability to read a collection from `since` on, until it is released. Thread-safe.

    Whoever asks for it by the same purpose finds it again, in any process. As a context it is released when
    the block ends; where it ends with an error, or the process does, it stays: what it was for is not done.
    """

    def __init__(self, capabilities: "Capabilities", info: CollectionInfo, purpose: str) -> None:
        self._capabilities = capabilities
        self._info = info
        self.purpose = purpose

    @property
    def since(self) -> int:
        """The earliest time that it keeps, linearized.

        Raises `HandleExpired` where it was released, `CollectionNotFound` where the collection was dropped.
        """
        return self._capabilities.held_since(self._info, self.purpose)

    def downgrade(self, since: int) -> None:
        """Give up the times before `since`; never back, and at most up to the latest complete one.

        Raises as `since` does.
        """
        self._capabilities.downgrade(self._info, self.purpose, since)

    def release(self) -> None:
        """End it; nothing to do where it has ended."""
        self._capabilities.release(self._info.collection_id, self.purpose, writes=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.release()


class WriteCapability:
    """A capability to write a collection, until it is released. Thread-safe; a context like `DurableHold`."""

    def __init__(
        self, capabilities: "Capabilities", info: CollectionInfo, purpose: str, writer: CollectionWriter
    ) -> None:
        self._capabilities = capabilities
        self._info = info
        self.purpose = purpose
        self.writer = writer

    def downgrade(self, frontier: int) -> None:
        """Promise to write nothing at times below `frontier`: the collection is sealed to it."""
        self.writer.seal(frontier)

    def release(self) -> None:
        """End it; nothing to do where it has ended."""
        self._capabilities.release(self._info.collection_id, self.purpose, writes=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.release()


class Capabilities:
    """The commands on capabilities, for `StorageController`. Thread-safe."""

    def __init__(
        self,
        client: PersistClient,
        log: ControllerLog,
        origin: Callable[[str | None], Origin],
        describe: Callable[[str], CollectionInfo],
        upper: Callable[[str], int],
    ) -> None:
        self._client = client
        self._log = log
        self._origin = origin
        self._describe = describe
        self._upper = upper

    def acquire(
        self, info: CollectionInfo, purpose: str, *, since: int | None = None, command_id: str | None = None
    ) -> DurableHold:
        """Take a capability to read, or find that of this purpose. Raises as `StorageController.hold`."""
        check_purpose(read_purpose(check_purpose(purpose)))
        if since is not None:
            check_frontier(since)
        origin = self._origin(command_id)

        def effects(_: ControllerState) -> list[Prepared]:
            shard, held = info.metadata_shard, read_purpose(purpose)
            # Refused in the step itself: once it is taken, others find it and go by it.
            taken = [self._client.prepare_critical(shard, purpose=held, not_past=since)]
            if since is not None:
                taken.append(self._client.prepare_downgrade_critical(shard, since, purpose=held))
            return taken

        changed = self._log.commit(
            lambda state: transitions.acquire(state, info.collection_id, purpose, origin, writes=False),
            effects,
        )
        hold = DurableHold(self, changed, purpose)
        if since is not None and (held := hold.since) > since:
            # One that was there is further.
            raise AsOfTooEarly(since, held)
        return hold

    def acquire_write(
        self, info: CollectionInfo, purpose: str, writer: CollectionWriter, *, command_id: str | None = None
    ) -> WriteCapability:
        """Take a capability to write, or find that of this purpose."""
        check_purpose(purpose)
        origin = self._origin(command_id)
        changed = self._log.commit(
            lambda state: transitions.acquire(state, info.collection_id, purpose, origin, writes=True)
        )
        return WriteCapability(self, changed, purpose, writer)

    def release(self, collection: str, purpose: str, *, writes: bool, command_id: str | None = None) -> None:
        """End a capability."""
        info = self._describe(collection)
        origin = self._origin(command_id)

        def effects(_: ControllerState) -> list[Prepared]:
            if writes:
                return []
            held = read_purpose(purpose)
            return [self._client.prepare_release_critical(info.metadata_shard, purpose=held)]

        self._log.commit(
            lambda state: transitions.release(state, info.collection_id, purpose, origin, writes=writes),
            effects,
        )

    def held_since(self, info: CollectionInfo, purpose: str) -> int:
        """Where a capability to read stands."""
        for hold in self._client.inspect(info.metadata_shard).holds:
            if hold.kind == "critical" and hold.purpose == read_purpose(purpose):
                return hold.since
        raise self._gone(info, purpose)

    def downgrade(self, info: CollectionInfo, purpose: str, since: int) -> None:
        """Move a capability to read forward."""
        since = min(check_frontier(since), max(self._upper(info.collection_id) - 1, 0))
        step = self._client.prepare_downgrade_critical(
            info.metadata_shard, since, purpose=read_purpose(purpose)
        )
        try:
            self._log.write([step])
        except (HandleExpired, ShardFinalized):
            raise self._gone(info, purpose) from None

    def holds(self, info: CollectionInfo, jobs: Iterable[JobRecord]) -> tuple[CollectionHold, ...]:
        """All that is held of a collection; nothing of one that is gone."""
        shards = {shard: self._client.inspect(shard) for shard in (info.metadata_shard, *info.data_shards)}
        return collection_holds(info, shards, jobs, self._client.clock.wall_ms())

    def _gone(self, info: CollectionInfo, purpose: str) -> HandleExpired | CollectionNotFound:
        if self._client.inspect(info.metadata_shard).finalized:
            return CollectionNotFound(info.end)
        return HandleExpired(f"the hold '{purpose}' on collection {info.name} was released")
