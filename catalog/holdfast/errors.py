"""The errors that Holdfast raises. All are subclasses of `HoldfastError`.

A message says what failed and where. Its `hint` says what to do.

A failed operation on a store is `Determinate` (it certainly did not happen) or `Indeterminate` (it may have
happened; this is the default if the outcome is unknown). The outcome of all other errors is certain.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from datetime import UTC, datetime
from typing import ClassVar, Self

CLOSED = 1 << 64
_NAMED = 10
"""A message names at most this number of tables."""


def _until(time_ms: int) -> str:
    try:
        return f", until {datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC at the latest"
    except (ValueError, OverflowError, OSError):
        return ""


def _frontier(value: int) -> str:
    return "closed" if value >= CLOSED else str(value)


class HoldfastError(Exception):
    """The base class of all errors of Holdfast.

    `hint` is one sentence that says what to do next. It is empty if the message is enough. A traceback ends
    with it. `exit_code` is the exit code of the command line.
    """

    exit_code: ClassVar[int] = 1
    hint: str = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        if hint:
            self.hint = hint
        if self.hint:
            self.add_note(f"hint: {self.hint}")

    def __reduce__(self) -> tuple[object, ...]:
        """Copies and pickled errors keep message, hint, fields and notes.

        They are created without `__init__`, because each class has different arguments.
        """
        state = self.__dict__ | {"__notes__": list(getattr(self, "__notes__", ()))}
        return _made, (type(self), self.args), state


def _made(kind: type[HoldfastError], args: tuple[object, ...]) -> HoldfastError:
    return kind.__new__(kind, *args)


class BadInput(HoldfastError):
    """The request is invalid. Nothing durable changed."""

    exit_code = 2


class NoMultiset(BadInput):
    """A row has a negative count: it was deleted more often than it was inserted."""


class StorageError(HoldfastError):
    """A storage operation failed.

    If `lasting` is set, nothing retries the operation: it fails until somebody repairs the store, or the
    store has already retried it for as long as it may.
    """

    exit_code = 3
    lasting: bool = False

    def for_good(self) -> Self:
        """Set `lasting`, and return this error."""
        self.lasting = True
        return self


class Determinate(StorageError):
    """The operation certainly did not happen."""

    @classmethod
    def closed(cls, store: str) -> Self:
        """Return the lasting error for the use of a store after its `close`."""
        return cls(
            f"{store} is closed, because its client or catalog was closed", hint="open it again"
        ).for_good()


class Indeterminate(StorageError):
    """The operation may or may not have happened."""


class StoreUnreachable(StorageError):
    """The store can't be reached or opened. Nothing was changed."""


class NoLocation(StoreUnreachable):
    """There is nothing at the URL. A client that may write would create a location there."""


class UnusablePath(BadInput, StoreUnreachable):
    """A path can't hold a store: it is not a folder, or this process can't write to it."""

    hint = "give a path that this process can write, or change the permissions of this one"


class CorruptBlob(StorageError):
    """Stored bytes differ from what was written."""

    hint = (
        "'holdfast persist verify' shows what else is damaged; if the consensus store was restored from an"
        " older copy, run 'holdfast persist recover'"
    )
    store = ""
    """The store of the object, if the message names it apart from the key."""

    def __init__(self, key: str, expected: str, actual: str, *, hint: str = "") -> None:
        super().__init__(f"{key} is corrupt: expected {expected}, found {actual}", hint=hint)
        self.key, self.expected, self.actual = key, expected, actual

    @classmethod
    def missing(cls, key: str, why: str, *, hint: str = "") -> Self:
        """Return the error for an object that is gone. `why` is the reason that it must exist."""
        error = cls(key, why, "nothing", hint=hint)
        error.args = (f"{key} is missing: {why}",)
        return error

    def again(self) -> Self:
        """A copy of the error, to raise it again."""
        return copy(self)

    def in_store(self, store: str, arguments: str) -> Self:
        """A copy of the error that also names the store of the object.

        Its hint names the location: `arguments` are those of a command.
        """
        if self.store:
            return self
        error = copy(self)
        error.store = store
        error.args = (str(self).replace(self.key, f"{self.key} in {store}", 1),)
        if self.hint == CorruptBlob.hint:
            error.hint = (
                "if the consensus store was restored from an older copy, run 'holdfast persist recover'; to"
                f" see what else is damaged, run: holdfast persist verify {arguments}"
            )
            error.__notes__ = [f"hint: {error.hint}"]
        return error


def _both_histories(arguments: str) -> str:
    return f"to see both histories and choose one, run: holdfast persist recover {arguments} --accept"


class LogRegressed(CorruptBlob):
    """The log of a shard is shorter than the log that this client read, or has another history.

    The consensus store went back in time: a lagging standby was promoted, or an older copy was restored. All
    handles of the client end with this error. A new client continues with the history that the store has now.
    `key` names the log and its store, `expected` is what the client saw, and `actual` is what the store has.
    """

    hint = _both_histories("URL")

    def __init__(self, key: str, expected: str, actual: str) -> None:
        HoldfastError.__init__(
            self,
            f"{key} went back to an older state: this client saw {expected}, and the store now has {actual}",
        )
        self.key, self.expected, self.actual = key, expected, actual

    def at(self, arguments: str, *, kept: bool = False) -> Self:
        """A copy of the error whose hint names the location: `arguments` are those of a command.

        With `kept`, a marker was left that keeps the blobs of both histories.
        """
        error = copy(self)
        error.hint = _both_histories(arguments)
        if kept:
            error.hint = f"nothing is deleted until you choose; {error.hint}"
        error.__notes__ = [f"hint: {error.hint}"]
        return error


class VersionTooNew(HoldfastError):
    """Stored data was written by a newer Holdfast."""

    hint = "use a Holdfast at least as new as the one that wrote it"


class Deprecated(HoldfastError):
    """Stored data is older than this Holdfast can read."""

    hint = "upgrade step by step through the versions between"


class UpgradeNeeded(HoldfastError):
    """A catalog has an older version of its format, and a reader can't upgrade it."""

    hint = (
        "run 'holdfast catalog upgrade-check' first to see whether the upgrade would succeed, then open it"
        " for writing, which upgrades it; or read it with the Holdfast that wrote it"
    )


class DiffOverflow(HoldfastError):
    """The committed diffs of a row add up to more than an int64 holds, so the row can't be read."""

    hint = "append the row with the opposite _diff at a later time, and read at that time or a later one"

    def __init__(self, row: str, *, shard_id: str = "") -> None:
        where = f" of shard {shard_id}" if shard_id else ""
        super().__init__(f"the sum of the diffs of the row ({row}){where} does not fit int64")
        self.row, self.shard_id = row, shard_id


class UpperMismatch(HoldfastError):
    """A compare-and-append expected an upper that is not the shard's."""

    def __init__(
        self, expected: int, actual: int, *, shard_id: str = "", message: str = "", hint: str = ""
    ) -> None:
        super().__init__(
            message
            or f"upper of {shard_id or 'the shard'} is {_frontier(actual)}, expected {_frontier(expected)}",
            hint=hint or "read the upper again and decide whether the write still makes sense",
        )
        self.expected, self.actual, self.shard_id = expected, actual, shard_id


class AsOfTooEarly(HoldfastError):
    """`as_of` is before `since`: compaction may have merged the times before `since`."""

    def __init__(self, as_of: int, since: int, *, message: str = "", hint: str = "") -> None:
        super().__init__(
            message or f"as_of {as_of} is before since {_frontier(since)}",
            hint=hint or f"read at {_frontier(since)} or later",
        )
        self.as_of, self.since = as_of, since


class AsOfNotYetAvailable(HoldfastError):
    """`as_of` is not below the upper yet, so its contents are not complete."""

    def __init__(self, as_of: int, upper: int, *, message: str = "", hint: str = "") -> None:
        if upper:
            latest, what = f"the latest complete time is {upper - 1}", "wait, or read at an earlier time"
        else:
            latest, what = "nothing has been written yet", "wait until something is written"
        super().__init__(message or f"as_of {as_of} is not complete: {latest}", hint=hint or what)
        self.as_of, self.upper = as_of, upper


class Fenced(HoldfastError):
    """The store has a greater fence token, so this process must stop."""

    exit_code = 4
    hint = "this process can write nothing more: stop it, or open the catalog again to take it back"

    def __init__(
        self, mine: object, durable: object, *, what: str = "catalog", message: str = "", hint: str = ""
    ) -> None:
        super().__init__(
            message
            or f"another process took over the {what}: it holds {durable}, and this process had {mine}",
            hint=hint or ("" if what == "catalog" else "this process can write nothing more: stop it"),
        )
        self.mine, self.durable = mine, durable


class FencedByMove(Fenced):
    """The catalog was moved away and back, and nobody has taken it over since. Open it again."""

    hint = "open it again, or call 'reopened'"

    def __init__(self, mine: object, durable: object) -> None:
        super().__init__(
            mine,
            durable,
            message="the catalog was moved to its other store and back since this process opened it: the"
            f" store has {durable}, and this process had {mine}",
        )


class LockHeld(HoldfastError):
    """Another process holds the write lock of the location."""


class FenceRegressed(HoldfastError):
    """The durable fence token is lower than this process's: the store was restored from an older state."""

    exit_code = 4

    def __init__(self, mine: object, durable: object, *, at_least: int | None = None, hint: str = "") -> None:
        """`at_least` is the lowest epoch that a restored catalog may have when it is written again.

        `hint` is what to do, if that is known better.
        """
        then = (
            ""
            if at_least is None
            else f"; to continue with this one: holdfast catalog fence --at-least {at_least}"
        )
        super().__init__(
            f"the store was restored from an older state: this process wrote its token, {mine}, and the store"
            f" now has {durable}",
            hint=hint or f"stop all writers and find out which state of the store is the right one{then}",
        )
        self.mine, self.durable = mine, durable


class CodecMismatch(BadInput):
    """A schema or codec does not fit the shard's."""


class NotWritable(HoldfastError):
    """The handle, the client or the store was opened for reading only."""

    hint = "open it for writing, without mode='read' or read_only=True"


class ShardFinalized(HoldfastError):
    """The shard was finalized. Its data is permanently gone."""


class CopiesRefused(HoldfastError):
    """Some tables of a location could not be copied. All others were.

    `refused` has, by the name of each of these tables, why and what to do. A traceback shows it too.
    """

    hint = "correct what is wrong with each of them, and copy again: all others are complete"

    def __init__(self, refused: Mapping[str, str], copied: int) -> None:
        names = ", ".join([*refused][:_NAMED]) + (", ..." if len(refused) > _NAMED else "")
        super().__init__(f"{len(refused)} of {len(refused) + copied} tables could not be copied: {names}")
        self.refused, self.copied = dict(refused), copied
        for name, why in refused.items():
            self.add_note(f"{name}: {why}")


class NotErased(HoldfastError):
    """The data of a dropped collection can't be deleted now, because a shard of it has two histories."""

    hint = "'holdfast persist recover' with --accept shows both histories and lets you choose one"


class HandleExpired(HoldfastError):
    """The lease of the handle was lost. Open a new handle."""

    hint = "open a new handle"


class LeaseLost(HandleExpired, AsOfTooEarly):
    """A reader's lease was lost while its process slept, and the next time to read is no longer readable."""

    def __init__(self, reader_id: str, as_of: int, since: int) -> None:
        HoldfastError.__init__(
            self,
            f"reader {reader_id} lost its lease because it sent no heartbeat in time:"
            f" {AsOfTooEarly(as_of, since)}",
            hint=f"open a new reader at {_frontier(since)} or later; a process that sleeps needs a longer"
            " lease_s, or a critical hold",
        )
        self.as_of, self.since = as_of, since


class UsedAfterFork(HoldfastError):
    """A client, handle, table or catalog was used in a forked child of the process that opened it.

    Nothing happened, and the parent can continue to use the object.
    """

    exit_code = 2
    hint = "open it again in the child process, which can use nothing that was opened before the fork"

    def __init__(self, what: str, opened_in: int, used_in: int) -> None:
        super().__init__(
            f"{what} was opened by process {opened_in}: process {used_in} is a forked child of it"
        )
        self.what, self.opened_in, self.used_in = what, opened_in, used_in


class SourceStalled(HoldfastError):
    """A source can't go on without losing something. Nothing was committed. The hint says what to do."""


class SourceChanged(HoldfastError):
    """What was found in a source is not there any more. Look again."""


class LocationMismatch(HoldfastError):
    """A blob store and a consensus store, or two shards, belong to different locations."""

    exit_code = 2


class Uninitialized(HoldfastError):
    """The catalog has never been opened for writing."""

    hint = "initialize it with 'holdfast catalog init' or let the operator do it"


class CatalogOutOfSync(HoldfastError):
    """Somebody else committed to the catalog. The transaction was not applied."""

    hint = "sync and try again"


class OtherHistory(CatalogOutOfSync):
    """The store does not continue what was read: a failover lost commits, or an older state was restored.

    Nothing happened.
    """

    hint = "open it again, read everything, and subscribe from there"

    def __init__(self, place: str) -> None:
        super().__init__(
            f"{place} has another history than what was read: a failover lost commits, or an older state was"
            " restored"
        )


class NotSourceOfTruth(HoldfastError):
    """The catalog is in the other one of its two linked stores. This store must not be read or written.

    `truth` is the store that holds the catalog (`Stash` or `Persist`). `place` is the store that was used.
    """

    exit_code = 4

    def __init__(self, place: str, truth: str, *, hint: str = "") -> None:
        super().__init__(
            f"the catalog is not in {place}: its source of truth is {truth}",
            hint=hint or "open it with both of its stores, the stash and persist: that follows the truth",
        )
        self.place, self.truth = place, truth


class LinkedElsewhere(HoldfastError):
    """The store is one of two linked stores, and doesn't show by itself which one is the source of truth."""

    exit_code = 4
    hint = "open it with both of its stores, the stash and persist"


class NeedsPersist(HoldfastError):
    """The stash doesn't show by itself that it holds the catalog, so persist is needed to open it."""

    exit_code = 4
    hint = "bring persist back, and open the catalog with both of its stores"


class LinkConflict(HoldfastError):
    """Two stores can't be linked, or were not linked with each other.

    A person must decide which store is the source of truth.
    """

    exit_code = 2


class StrategyMismatch(BadInput):
    """The catalog was linked with another migration strategy, which can't change."""


class MigrationInProgress(HoldfastError):
    """A migration is running. You can open the catalog for writing when it ends or its deadline is over."""

    exit_code = 4
    hint = "wait and try again; 'holdfast migrate status' shows how far it is"

    def __init__(self, migration_id: str, holder: str, deadline_ms: int | None = None) -> None:
        """`deadline_ms` is the time, in milliseconds since 1970, until which others can't write, if known."""
        until = "" if deadline_ms is None else _until(deadline_ms)
        super().__init__(f"migration {migration_id} of the catalog is in progress ({holder}){until}")
        self.migration_id, self.holder, self.deadline_ms = migration_id, holder, deadline_ms


class MigrationConflict(HoldfastError):
    """Another migration of the catalog is running, or this one was begun with another target."""

    exit_code = 4


class MigrationTimedOut(HoldfastError):
    """A migration exceeded its timeout and stopped before its next step. Others may take over the catalog.

    The source of truth has not moved.
    """

    hint = "run it again, with a longer timeout if it needs one; or roll it back"

    def __init__(self, migration_id: str, step: str) -> None:
        super().__init__(f"migration {migration_id} timed out before step {step}")
        self.migration_id = migration_id


class ContentsDiffer(HoldfastError):
    """The contents that a migration wrote differ from what it read. The source of truth did not move.

    `object_types` are the names of the object types that differ.
    """

    hint = "run it again, which writes everything again; if they still differ, one of the stores is damaged"

    def __init__(self, object_types: Sequence[str], source: str, target: str) -> None:
        super().__init__(f"the contents differ in {', '.join(object_types)}: {source}, {target}")
        self.object_types = tuple(object_types)


class ShadowDiverged(HoldfastError):
    """The two sides of a shadow catalog differ. One of the implementations or stores is wrong."""

    hint = "use the primary; the next open for writing creates the secondary again from it"

    def __init__(self, what: str, primary: str, secondary: str) -> None:
        super().__init__(
            f"the shadow has diverged in {what}: the primary {primary}; the secondary {secondary}"
        )
        self.what, self.primary, self.secondary = what, primary, secondary


class UniquenessViolation(BadInput):
    """A catalog object would have the same unique name or id as another object."""


class TransactionInProgress(HoldfastError):
    """The catalog handle already has an open transaction."""

    hint = "commit or close the open transaction first"


class CollectionNotFound(BadInput):
    """No collection has that name or id."""


class WrittenBefore(HoldfastError):
    """A file with the same contents was already written to the collection. Nothing was written now."""


class HandoverInProgress(HoldfastError):
    """A rendition has taken over, but doesn't have all earlier contents yet."""

    hint = "try again later: other processes are still writing its contents"


class HandedOver(HoldfastError):
    """A rendition is no longer current from time `at`: `follower` took over. Nothing was written."""

    def __init__(self, collection: str, rendition: str, at: int, follower: str) -> None:
        super().__init__(
            f"rendition {rendition} of collection {collection} ended at time {at}, when"
            f" {follower or 'another rendition'} took over",
            hint=f"write only times before {at} to it; write later rows to the rendition that took over",
        )
        self.at, self.follower = at, follower


class ConflictingWrite(HoldfastError):
    """Writers that should be identical wrote different rows at the same times. `rows` has the first ones."""

    hint = "stop the writers and find out which is wrong; a new rendition replaces what was written"

    def __init__(self, what: str, lower: int, upper: int, rows: Sequence[str], *, differing: int) -> None:
        more = f", and {differing - len(rows)} more" if differing > len(rows) else ""
        super().__init__(
            f"another writer of {what} wrote other rows at times in [{lower}, {_frontier(upper)}):"
            f" {'; '.join(rows)}{more}"
        )
        self.lower, self.upper, self.rows, self.differing = lower, upper, tuple(rows), differing


class Overtaken(UpperMismatch):
    """A handover or a read closed times that nobody wrote. Rows at these times can't be written any more.

    This writer's rows at times below `written` are stored. Write the rest at `actual` or later.
    """

    def __init__(self, collection: str, written: int, at: int, *, why: str = "") -> None:
        closed = f": {why}" if why else f" was handed over at time {at}"
        times = f"times {written} to {at - 1}" if written < at - 1 else f"time {written}"
        HoldfastError.__init__(
            self,
            f"collection {collection}{closed}, so rows can no longer be written at {times}",
            hint=f"write them at {at} or later; every identical writer must do the same",
        )
        self.expected, self.actual, self.shard_id = written, at, f"collection {collection}"
        self.written = written


class NotComparable(HoldfastError):
    """The rows of another writer can't be compared any more, because their times were compacted."""

    hint = "open a new writer, and continue from its upper"


class NotCaughtUp(HoldfastError):
    """A rendition can't take over yet."""


class CollectionInUse(HoldfastError):
    """A collection can't be dropped yet, because readers hold it."""


class TornRendition(HoldfastError):
    """The shards of a rendition have different uppers. Somebody wrote to a shard directly."""

    def __init__(self, collection: str, rendition: str, uppers: Mapping[str, int]) -> None:
        each = ", ".join(f"{shard} at {_frontier(upper)}" for shard, upper in uppers.items())
        super().__init__(
            f"rendition {rendition} of collection {collection} is torn: {each}",
            hint="write only to the collection, never to its shards; seal the shards whose upper is lower",
        )
        self.uppers = dict(uppers)
