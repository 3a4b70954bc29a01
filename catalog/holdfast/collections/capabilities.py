"""Capabilities: rights to read or write a collection that outlive their process.

- A leased hold ends with its process. A capability ends when any process releases it.
- A capability to read is a critical hold on the metadata shard, because holding its since holds the data. It
  is taken and released in the same commit as its entry in the collection's record, which shows who has it.
- A capability to write is only the entry. It keeps the collection from being dropped. Its holder gives up the
  times below `f` by sealing the collection to `f`: nobody can write there any more.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

from holdfast.collections.controller_log import ControllerLog
from holdfast.collections.record import collection_transitions as transitions
from holdfast.collections.record.jobs import JobRecord, hold_purpose
from holdfast.collections.record.spec import CollectionInfo, RenditionState
from holdfast.collections.record.state import ControllerState
from holdfast.collections.record.transitions import Origin
from holdfast.collections.rendition_copy import rendition_hold
from holdfast.collections.retention import RETENTION_PURPOSE
from holdfast.collections.writer import CollectionWriter
from holdfast.errors import AsOfTooEarly, CollectionNotFound, HandleExpired, ShardFinalized
from holdfast.persist import PersistClient, Prepared
from holdfast.persist.checks import check_frontier, check_purpose
from holdfast.persist.state.inspect import HoldInfo, ShardInfo

Kind = Literal["read", "write"]


_READ: Final = "read: "


def read_purpose(purpose: str) -> str:
    """The purpose of the critical hold on the metadata shard that is a capability to read."""
    return f"{_READ}{purpose}"


def shown_purpose(purpose: str) -> str:
    """The purpose of a hold for people: of a capability to read, the one that its reader gave."""
    return purpose.removeprefix(_READ)


@dataclass(frozen=True, slots=True)
class CollectionHold:
    """A hold on a collection, or a capability to write it.

    `since` is the earliest time that a hold keeps (None: it is a capability to write), and `keeps` are the
    retired renditions that it keeps. A `durable` hold ends when it is released, another one `lease_s` seconds
    after its process ends. `age_ms` is the wall time since it was taken, or None if nobody recorded it. An
    `own` hold belongs to the collection itself, for its retention or for filling a rendition. It doesn't
    prevent a drop.
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
    """Whether the hold belongs to the collection itself.

    A lease does only while a rendition is being filled.
    """
    filling = {rendition_hold(each.id) for each in info.renditions}
    return hold.purpose in filling or (hold.kind == "critical" and hold.purpose == RETENTION_PURPOSE)


def collection_holds(
    info: CollectionInfo, shards: Mapping[str, ShardInfo], jobs: Iterable[JobRecord], now_ms: int
) -> tuple[CollectionHold, ...]:
    """All holds of a collection, from its record and the state of each of its shards.

    A reader or job that holds data shards in addition to the metadata shard is listed once.
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
    """The time since then. Zero if the wall clock is behind the one that recorded it."""
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

    Any process that asks for the same purpose finds the same capability. As a context manager it is released
    when the block ends normally. If the block raises, or the process dies, it stays, because its purpose is
    not done.
    """

    def __init__(self, capabilities: "Capabilities", info: CollectionInfo, purpose: str) -> None:
        self._capabilities = capabilities
        self._info = info
        self.purpose = purpose

    @property
    def since(self) -> int:
        """The earliest time that it keeps, as of now (linearized).

        Raises `HandleExpired` if it was released, and `CollectionNotFound` if the collection was dropped.
        """
        return self._capabilities.held_since(self._info, self.purpose)

    def downgrade(self, since: int) -> None:
        """Give up the times before `since`. Never moves back, and at most to the latest complete time.

        Raises like `since`.
        """
        self._capabilities.downgrade(self._info, self.purpose, since)

    def release(self) -> None:
        """Release it. Does nothing if it is already released."""
        self._capabilities.release(self._info.collection_id, self.purpose, writes=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.release()


class WriteCapability:
    """A capability to write a collection, until it is released. Thread-safe. A context like `DurableHold`."""

    def __init__(
        self, capabilities: "Capabilities", info: CollectionInfo, purpose: str, writer: CollectionWriter
    ) -> None:
        self._capabilities = capabilities
        self._info = info
        self.purpose = purpose
        self.writer = writer

    def downgrade(self, frontier: int, *, far_ahead: bool = False) -> None:
        """Promise to write nothing at times below `frontier`, by sealing the collection to it.

        `far_ahead` is as for `CollectionWriter.append`.
        """
        self.writer.seal(frontier, far_ahead=far_ahead)

    def release(self) -> None:
        """Release it. Does nothing if it is already released."""
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
        """Take a capability to read, or find the one with this purpose.

        Raises like `StorageController.hold`.
        """
        check_purpose(read_purpose(check_purpose(purpose)))
        if since is not None:
            check_frontier(since)
        origin = self._origin(command_id)

        def effects(_: ControllerState) -> list[Prepared]:
            shard, held = info.metadata_shard, read_purpose(purpose)
            # The commit itself checks the since: once the hold is taken, others find it and rely on it.
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
            # The existing one has moved past it.
            raise AsOfTooEarly(since, held)
        return hold

    def acquire_write(
        self, info: CollectionInfo, purpose: str, writer: CollectionWriter, *, command_id: str | None = None
    ) -> WriteCapability:
        """Take a capability to write, or find the one with this purpose."""
        check_purpose(purpose)
        origin = self._origin(command_id)
        changed = self._log.commit(
            lambda state: transitions.acquire(state, info.collection_id, purpose, origin, writes=True)
        )
        return WriteCapability(self, changed, purpose, writer)

    def release(self, collection: str, purpose: str, *, writes: bool, command_id: str | None = None) -> None:
        """Release a capability."""
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
        """The since of a capability to read."""
        for hold in self._client.inspect(info.metadata_shard).holds:
            if hold.kind == "critical" and hold.purpose == read_purpose(purpose):
                return hold.since
        raise self._gone(info, purpose)

    def downgrade(self, info: CollectionInfo, purpose: str, since: int) -> None:
        """Move the since of a capability to read forward."""
        since = min(check_frontier(since), max(self._upper(info.collection_id) - 1, 0))
        step = self._client.prepare_downgrade_critical(
            info.metadata_shard, since, purpose=read_purpose(purpose)
        )
        try:
            self._log.write([step])
        except (HandleExpired, ShardFinalized):
            raise self._gone(info, purpose) from None

    def holds(self, info: CollectionInfo, jobs: Iterable[JobRecord]) -> tuple[CollectionHold, ...]:
        """All holds of a collection. Empty if it was dropped."""
        shards = {shard: self._client.inspect(shard) for shard in (info.metadata_shard, *info.data_shards)}
        return collection_holds(info, shards, jobs, self._client.clock.wall_ms())

    def _gone(self, info: CollectionInfo, purpose: str) -> HandleExpired | CollectionNotFound:
        if self._client.inspect(info.metadata_shard).finalized:
            return CollectionNotFound(info.end)
        return HandleExpired(f"the hold '{purpose}' on collection {info.name} was released")
