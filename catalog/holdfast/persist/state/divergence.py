"""Two histories of one log: how clients notice a second history, and what they leave behind.

A consensus store may go back in time at any moment: a lagging standby is promoted, an older copy is restored,
or the wrong volume is mounted. Then the numbers of acknowledged versions are given to other versions. All
checks rely on one fact: a version number together with the digest of its row identifies a history.

- Per shard, a client remembers the number and the digest of the newest row that it has verified. Each read of
  the head and each append compares them inside one statement of the store.
- If a client finds other bytes at that number, or a shorter log, it has met another history. The client ends:
  all of its handles in the location raise `LogRegressed`. Only a new client continues, with the history that
  the store has now.
- A store may notice by itself that it went back (a log of objects does). It raises `LogRegressed`. The client
  ends in the same way, and leaves a marker for every shard that it knows. A marker counts only if its row is
  lost.
- A client that may write also leaves a marker in Blob, next to the blobs of the shard. While a marker counts,
  nobody deletes anything of that shard. So the blobs of both histories stay until a person chooses one with
  `holdfast persist recover`.
- A client ends only once, and other shards may have lost rows too. So the client then compares all shards
  that it knows, with one read of their heads, and leaves a marker for each that differs.
- The blobs themselves can show two histories: a rollup is newer than the log, or the log can't have made the
  version in the rollup. Nothing is deleted then either. A writer puts a rollup after it has committed the
  rollup's version. So the check lists the rollups first, and then reads the head that it compares them with.
- Some stores know the line of their own history, such as the timeline of a Postgres server. The first client
  that writes on a line records it in Blob. A garbage collector on any line but the newest deletes nothing,
  because its server may be an old primary behind a network partition.
- If a marker or a rollup is damaged, nobody knows what it was. Nothing is deleted in this case either.
- A marker stops counting after a recovery. It also stops counting if the log has the row that the client
  knew, because then the client was wrong, not the log.
"""

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from holdfast.errors import CorruptBlob, HoldfastError, LogRegressed
from holdfast.persist.clock import Clock, TimeLeft
from holdfast.persist.ids import EPOCH_BITS, LINE_NAME, MARKER_NAME, rollup_seqno
from holdfast.persist.state.codec import check_moment, decode_diff, decode_state
from holdfast.persist.state.cuts import known_digest
from holdfast.persist.state.history import contradiction, is_decided
from holdfast.persist.state.state import Drop, Rollup, ShardState, StateDiff
from holdfast.persist.stores import Blob, Digest, Head, Location, digest_of
from holdfast.persist.stores.frame import MOST_BYTES
from holdfast.persist.stores.location import BLOB_KEY, decode_location, read_location
from holdfast.persist.stores.traits import MAX_SEQNO

_MARKER: Final = "f"
_LINES: Final = "lines/"
_MARKING_S: Final = 10.0
"""Seconds for which a client that met another history leaves markers, before it raises the error."""
_MOST_MARKER_BYTES: Final = 64 << 10
"""More than a marker has. Nobody reads more of a damaged one."""
_MOST_RECORDED: Final = 64
"""The rollups in a marker, at about 100 bytes each."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The record of a client that met another history: the row that it knew, and what the log had instead.

    `found` is None if the log ended before `seqno`. `head` is 0 if the client does not know the end of the
    log. `wall_ms` is the time of the client's host in ms since the epoch. `of` is what the shard is for, if
    the client knew it. `rollups` are those of the client's history.
    """

    shard_id: str
    recoveries: int
    seqno: int
    known: Digest
    found: Digest | None
    head: int
    hostname: str
    wall_ms: int
    of: str = ""
    rollups: "Recorded" = ()

    @property
    def key(self) -> str:
        """The key of the marker in Blob. Clients that found the same rows write the same key."""
        found = "none" if self.found is None else str(self.found)
        return f"{self.shard_id}/{_MARKER}{self.seqno}-{self.recoveries}-{self.known}-{found}"

    def __str__(self) -> str:
        knew = f"a client on host {self.hostname} knew version {self.seqno} as row {self.known}"
        if not self.head:
            return f"{knew}, and the log went back to an older state"
        found = "no such row" if self.found is None else f"row {self.found}"
        return f"{knew}, and the log had {found} (its head was version {self.head})"


Recorded = tuple[tuple[str, int], ...]
"""Rollups that a history has recorded, oldest first: each key, and the version that replaced it (0: none)."""


class KnownRow(NamedTuple):
    """The newest row of a shard that a client knows, and the rollups that its history has recorded."""

    shard_id: str
    seqno: int
    digest: Digest
    rollups: Recorded = ()


class Met(NamedTuple):
    """A known row, what the log has at its number, and the head of the log; None and 0 if unknown."""

    known: KnownRow
    found: Digest | None
    head: int


class ForkGuard:
    """Records whether a client met another history. All machines of the client share it. Thread-safe.

    `known` returns the newest rows that the client has verified.
    """

    def __init__(
        self,
        location: Location,
        *,
        hostname: str,
        read_only: bool = False,
        known: Callable[[], Iterable[KnownRow]] = tuple,
    ) -> None:
        self._known: Final = known
        self._location: Final = location
        self._blob: Final = location.blob
        self._where: Final = location.consensus.description
        self._arguments: Final = location.arguments
        self._purposes: Final[dict[str, str]] = {}
        self._hostname: Final = hostname
        self._read_only: Final = read_only
        self._lock: Final = threading.Lock()
        self.ended: LogRegressed | None = None
        """The error that ended this client, because it met another history; None while there is none."""
        self.ended_by = 0
        """The thread that ended this client."""
        self._line: str | None = None

    def name_shards(self, purposes: Mapping[str, str]) -> None:
        """Record what shards are for, such as a collection, so that errors can name it."""
        self._purposes.update(purposes)

    def check(self) -> None:
        """Raise `LogRegressed` if the client has met another history."""
        if self.ended is not None:
            raise self.ended.again()

    def record_line(self, line: str | None) -> None:
        """On the client's first write on a line of the store's history, record the line in Blob."""
        if line is None or line == self._line or self._read_only:
            return
        lines = lines_of(self._blob)
        recoveries = read_recoveries(self._blob)
        if line not in [each.line for each in lines if each.recoveries == recoveries]:
            _record_line(self._blob, lines, recoveries, line, self._hostname)
        self._line = line

    def end(self, known: KnownRow, found: Digest | None, head: int, clock: Clock) -> LogRegressed:
        """End the client's history and leave markers. Return the error that all of its handles raise.

        `known` is the row that the client knows, and `found` is the row of that number in the log.
        """
        if found is None:
            actual = f"version {head} as its newest" if head else "no version of it"
        else:
            actual = f"another version {known.seqno}"
        purpose = self._purposes.get(known.shard_id)
        what = f"{known.shard_id} ({purpose})" if purpose else known.shard_id
        error = LogRegressed(f"the log of {what} in {self._where}", f"version {known.seqno}", actual)
        error = error.at(self._arguments)
        with self._lock:
            if self.ended is not None:
                return self.ended.again()
            self.ended, self.ended_by = error, threading.get_ident()
        if self._read_only:
            return error
        if not self._leave([Met(known, found, head)], error, clock):
            return error
        kept = error.at(self._arguments, kept=True)
        self._leave(self._others(known.shard_id), kept, clock)
        self.ended = kept
        return kept.again()

    @contextmanager
    def watching(self, clock: Clock) -> Iterator[None]:
        """Wrap calls of the consensus store. If one raises `LogRegressed`, the client's history ends."""
        try:
            yield
        except LogRegressed as raised:
            error = raised.at(self._arguments)
            with self._lock:
                is_first = self.ended is None
                if is_first:
                    self.ended, self.ended_by = error, threading.get_ident()
            rows = (Met(row, None, 0) for row in self._known())
            if is_first and not self._read_only and self._leave(rows, error, clock):
                self.ended = error.at(self._arguments, kept=True)
                raise self.ended.again() from None
            raise error from None

    def _others(self, but: str) -> Iterator[Met]:
        """Compare the other shards that the client knows with their logs. Yield those that differ.

        This makes one read of the consensus store for all shards. If it fails, all of them are yielded.
        """
        rows = [row for row in self._known() if row.shard_id != but]
        if not rows:
            return
        try:
            heads = self._location.consensus.heads(
                [row.shard_id for row in rows], {row.shard_id: row.seqno for row in rows}
            )
        except (HoldfastError, ValueError):
            yield from (Met(row, None, 0) for row in rows)
            return
        for row in rows:
            met = self._compared(row, heads.get(row.shard_id))
            if met is not None:
                yield met

    def _compared(self, row: KnownRow, head: Head | None) -> Met | None:
        """Return what the log has instead of a known row. None if it has the row, or nothing shows it."""
        if head is None or head.seqno < row.seqno:
            return Met(row, None, head.seqno if head is not None else 0)
        if head.seqno >> EPOCH_BITS != row.seqno >> EPOCH_BITS:
            return None
        found = digest_of(head.data) if head.seqno == row.seqno else head.known
        if found is None:
            try:
                found = known_digest(self._location, row.shard_id, row.seqno)
            except (HoldfastError, ValueError):
                return Met(row, None, 0)
        return None if found is None or found == row.digest else Met(row, found, head.seqno)

    def _leave(self, rows: Iterable[Met], error: LogRegressed, clock: Clock) -> bool:
        """Leave a marker for each row. Return whether all were written; else a note of `error` says why."""
        left = TimeLeft(clock, _MARKING_S)
        problem = ""
        try:
            recoveries = read_recoveries(self._blob)
            for (shard_id, seqno, known, rollups), found, head in rows:
                now, of = clock.wall_ms(), self._purposes.get(shard_id, "")
                marker = Marker(
                    shard_id, recoveries, seqno, known, found, head, self._hostname, now, of, rollups
                )
                try:
                    self._blob.put(marker.key, encode_marker(marker))
                except (HoldfastError, ValueError) as failed:
                    problem = problem or str(failed)
                if left.after_attempt() <= 0:
                    problem = problem or f"this took more than {_MARKING_S:.0f} s"
                    break
        except (HoldfastError, ValueError) as failed:
            problem = problem or str(failed)
        if problem:
            error.add_note(f"not all markers for garbage collection could be written: {problem}")
        return not problem


def read_recoveries(blob: Blob) -> int:
    """Return how often the location was recovered, as its blob store records it."""
    stored = read_location(blob.direct)
    if stored is None:
        raise CorruptBlob.missing(
            f"{BLOB_KEY} in {blob.description}",
            "it records the id of the location",
            hint="restore it from a backup",
        )
    return decode_location(stored, f"{BLOB_KEY} in {blob.description}").recoveries


class Line(NamedTuple):
    """A record that clients wrote on a line of the store's history. The newest has the greatest number."""

    number: int
    recoveries: int
    line: str


def lines_of(blob: Blob) -> list[Line]:
    """Return the records of a location, oldest first."""
    names = (LINE_NAME.fullmatch(meta.key) for meta in blob.direct.list(_LINES))
    return sorted(
        Line(int(name["number"]), int(name["recoveries"]), name["line"]) for name in names if name is not None
    )


def _record_line(blob: Blob, lines: Sequence[Line], recoveries: int, line: str, hostname: str) -> None:
    number = max((each.number for each in lines), default=0) + 1
    data = json.dumps({"format": 1, "line": line, "hostname": hostname}).encode()
    blob.put(f"{_LINES}{number:08}-{recoveries}-{line}", data)


class Doubt(NamedTuple):
    """A reason to believe that a shard has two histories, and the key of the blob that shows it."""

    key: str
    why: str


class Refreshing(Protocol):
    """The state cache of a shard (`Machine`), which can read the newest version."""

    location: Location
    shard_id: str

    @property
    def state(self) -> ShardState:
        """The newest version that this process knows."""

    def refresh(self) -> ShardState:
        """Read and return the newest version in the store."""


def why_keep(machine: Refreshing) -> str:
    """Return why nothing of a shard may be deleted now, or "" if it may. The machine has refreshed.

    Another history can still begin between this check and a deletion. A deleted blob was garbage in the
    history that ended, for as long as `holdfast.persist.upkeep.garbage` keeps garbage (its rule 5). The new
    history needs it only if the store went back further than that.
    """
    return next((doubt.why for doubt in doubts(machine)), "")


def doubts(machine: Refreshing) -> Iterator[Doubt]:
    """Yield all reasons why nothing of a shard may be deleted now. The machine has refreshed."""
    location = machine.location
    recoveries = read_recoveries(location.blob)
    why = why_old_line(location, recoveries)
    if why:
        yield Doubt(_LINES, why)
    yield from standing_markers(location, machine.shard_id, recoveries)
    yield from unknown_rollups(machine)


def standing_markers(location: Location, shard_id: str, recoveries: int) -> Iterator[Doubt]:
    """Yield the markers of a shard that count: the log does not have the row that the client knew."""
    for name in _marker_names(location.blob, shard_id):
        if int(name["recoveries"]) != recoveries:
            continue
        try:
            marker = read_marker(location.blob, name.string)
        except CorruptBlob as error:
            yield Doubt(name.string, str(error))
            continue
        if marker is not None and known_digest(location, shard_id, marker.seqno) != marker.known:
            yield Doubt(marker.key, str(marker))


def why_old_line(location: Location, recoveries: int) -> str:
    """Return why the store looks like an old primary or a copy, or "" if it does not."""
    line = location.consensus.line()
    lines = [each for each in lines_of(location.blob) if each.recoveries == recoveries]
    if line is None or not lines or lines[-1].line == line:
        return ""
    return (
        f"the consensus store is {line}, and clients have written on {lines[-1].line} since:"
        " this server is an old primary, or a copy"
    )


def accept_line(location: Location, hostname: str) -> None:
    """Record that the consensus store, as it is now, is the newest."""
    line = location.consensus.line()
    recoveries = read_recoveries(location.blob)
    if line is not None and why_old_line(location, recoveries):
        _record_line(location.blob, lines_of(location.blob), recoveries, line, hostname)


def unknown_rollups(machine: Refreshing) -> Iterator[Doubt]:
    """Yield the rollups in Blob that belong to another history than the log. The machine has refreshed.

    A rollup that a writer uploaded before it died belongs to this history, because its version is in the log.
    So does a rollup that a writer is about to record. The history of a damaged rollup is unknown.
    """
    location, shard_id = machine.location, machine.shard_id
    listed = {
        meta.key: seqno
        for meta in location.blob.direct.list(f"{shard_id}/v")
        if (seqno := rollup_seqno(meta.key)) is not None
    }
    if _named_rollups(machine.state) >= listed.keys():
        return
    # Refresh after the listing, because during it a writer may commit, upload a rollup and record it.
    state = machine.refresh()
    named = _named_rollups(state)
    for key, seqno in listed.items():
        if key in named or is_decided(seqno, state.seqno):
            continue
        if seqno > state.seqno:
            yield Doubt(
                key, f"{key} is a rollup of version {seqno}, and the log ends at version {state.seqno}"
            )
            continue
        try:
            found = read_rollup(location, shard_id, key, seqno)
            if found is not None and contradiction(found, state, row_of(location, shard_id, seqno)):
                yield Doubt(key, f"{key} is a rollup of version {seqno} that differs from the log")
        except CorruptBlob as error:
            yield Doubt(key, str(error))


def read_rollup(location: Location, shard_id: str, key: str, seqno: int) -> ShardState | None:
    """Return the version in a rollup; None if it is gone. Raises `CorruptBlob`."""
    data = location.blob.direct.get_start(key, MOST_BYTES)
    if data is None:
        return None
    state = decode_state(data, key)
    if (state.shard_id, state.seqno) != (shard_id, seqno):
        found = f"version {state.seqno} of {state.shard_id}"
        raise CorruptBlob(key, f"version {seqno} of {shard_id}", found)
    return state


def _named_rollups(state: ShardState) -> set[str]:
    return {rollup.blob_key for rollup in state.rollups.values()} | state.garbage.keys()


def recorded_rollups(state: ShardState) -> Recorded:
    """Return the newest rollups that the history of a version has recorded, as far as the version shows."""
    replaced = {key: garbage.seqno for key, garbage in state.garbage.items()}
    found = replaced | {rollup.blob_key: 0 for rollup in state.rollups.values()}
    rollups = sorted((seqno, key) for key in found if (seqno := rollup_seqno(key)) is not None)
    return tuple((key, found[key]) for _, key in rollups[-_MOST_RECORDED:])


def newest_shared(location: Location, log: ShardState, other: Recorded) -> ShardState | None:
    """Return the newest version that certainly belongs to the log and to another history; None if unknown.

    `other` are the rollups of the other history. A rollup that both histories have recorded holds a version
    of both. That a rollup is garbage in the log does not show that the log has recorded it: an acceptance
    makes garbage of rollups of other histories. So the same version must have replaced it in both histories,
    or the log's own row must show that it was replaced.
    """
    mine = dict(recorded_rollups(log))
    for key, replaced in reversed(other):
        seqno, by = rollup_seqno(key), mine.get(key)
        if seqno is None or by is None:
            continue
        if by in (0, replaced) or _replaces(row_of(location, log.shard_id, by), seqno):
            state = read_rollup(location, log.shard_id, key, seqno)
            if state is not None:
                return state
    return None


def _replaces(row: StateDiff | None, seqno: int) -> bool:
    """Whether a row replaces the rollup of version `seqno`."""
    return row is not None and Drop(Rollup, seqno) in row.changes


def row_of(location: Location, shard_id: str, seqno: int) -> StateDiff | None:
    """Return row `seqno` of a shard's log; None if the log no longer has it."""
    rows = location.consensus.scan(shard_id, seqno, 1)
    if not rows or rows[0].seqno != seqno:
        return None
    return decode_diff(rows[0].data, f"{shard_id} log {seqno}")


def encode_marker(marker: Marker) -> bytes:
    """Encode a marker as one JSON object."""
    fields = {
        "format": 1,
        "shard_id": marker.shard_id,
        "recoveries": marker.recoveries,
        "seqno": marker.seqno,
        "known": str(marker.known),
        "found": None if marker.found is None else str(marker.found),
        "head": marker.head,
        "hostname": marker.hostname,
        "wall_ms": marker.wall_ms,
        "of": marker.of,
        "rollups": marker.rollups,
    }
    return json.dumps(fields, sort_keys=True).encode()


def decode_marker(data: bytes, key: str) -> Marker:
    """Decode the marker in a blob; raises `CorruptBlob`."""
    try:
        fields = json.loads(data)
        found = fields["found"]
        marker = Marker(
            str(fields["shard_id"]),
            int(fields["recoveries"]),
            int(fields["seqno"]),
            _digest(fields["known"]),
            None if found is None else _digest(found),
            int(fields["head"]),
            str(fields["hostname"]),
            check_moment(int(fields["wall_ms"]), key),
            str(fields.get("of", "")),
            tuple((str(rollup), int(replaced)) for rollup, replaced in fields.get("rollups", ())),
        )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptBlob(key, "a marker of two histories", repr(error)) from None
    if marker.key != key:
        raise CorruptBlob(key, "the marker of its name", marker.key)
    if not 0 <= marker.head <= MAX_SEQNO:
        raise CorruptBlob(key, "a version as the head of the log", str(marker.head))
    return marker


def markers_of(blob: Blob, shard_id: str) -> Iterator[Marker]:
    """Yield all markers of a shard, whether they still count or not. Raises `CorruptBlob`."""
    for key in marker_keys(blob, shard_id):
        marker = read_marker(blob, key)
        if marker is not None:
            yield marker


def marker_keys(blob: Blob, shard_id: str) -> list[str]:
    """Return the keys of all markers of a shard, including damaged ones."""
    return [name.string for name in _marker_names(blob, shard_id)]


def _marker_names(blob: Blob, shard_id: str) -> Iterator[re.Match[str]]:
    names = (MARKER_NAME.fullmatch(meta.key) for meta in blob.direct.list(f"{shard_id}/{_MARKER}"))
    return (name for name in names if name is not None)


def read_marker(blob: Blob, key: str) -> Marker | None:
    """Return the marker at a key; None if it is gone. Raises `CorruptBlob`."""
    data = blob.direct.get_start(key, _MOST_MARKER_BYTES)
    return None if data is None else decode_marker(data, key)


def _digest(text: str) -> Digest:
    size, _, crc = text.partition(".")
    return Digest(int(size), bytes.fromhex(crc))
