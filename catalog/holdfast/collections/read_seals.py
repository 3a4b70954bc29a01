"""Completes a time for a read: seals the collection if `complete_times` allows it.

Several clients may seal at once, others may write, and a handover may come between. Each of these makes the
append of the seal fail, and it changes nothing then. The upper is read again after every try, and the rule
decides again. A seal with an unknown outcome needs no other care: if it happens later, it either finds the
upper that it expects, which is a seal that the rule allowed, or it fails.
"""

from collections.abc import Callable
from typing import Final

from holdfast.collections.complete_times import (
    BEHIND_MS,
    LEAST_MS,
    Completeness,
    ReadSeal,
    check_past,
    seal_first,
)
from holdfast.collections.controller import StorageController
from holdfast.collections.reader import CollectionReader
from holdfast.collections.record.spec import RenditionInfo
from holdfast.errors import (
    AsOfNotYetAvailable,
    BadInput,
    Determinate,
    HandleExpired,
    HandoverInProgress,
    HoldfastError,
    Indeterminate,
    NotWritable,
    ShardFinalized,
    UpperMismatch,
)
from holdfast.persist import PersistClient
from holdfast.persist.upkeep.leases import SEAL_FOR_A_READ

_FAILURES: Final = 5


def complete(
    controller: StorageController, reader: CollectionReader, time: int, what: str, instead: str
) -> int:
    """Make sure that a collection can be read at `time`, with one empty commit if that is needed and allowed.

    Returns an upper above `time`, or 0 for a collection that nobody has written, which is empty then. The
    client of `controller` seals, so with a client of mode "read", nothing is written. `what` and `instead`
    are as in `seal_first`, and so are the errors. If the store refuses the seal, the client counts as one
    that may not write.
    """
    return _complete(controller, controller.client, reader, time, what, instead)


def _complete(
    controller: StorageController,
    reading: PersistClient,
    reader: CollectionReader,
    time: int,
    what: str,
    instead: str,
) -> int:
    """As `complete`. `reading` is the client of the reader: it has cached what the reader saw."""
    may_seal = controller.client.mode == "write"
    failures = 0
    while True:
        known = _known(controller.client, reading, reader, time, may_seal=may_seal)
        new_upper = seal_first(time, known, what, instead)
        if new_upper is None:
            return known.upper
        try:
            writer = controller.writer(reader.info.collection_id, purpose=SEAL_FOR_A_READ)
            writer.append(None, known.upper, new_upper)
        except (UpperMismatch, ShardFinalized):
            continue  # Somebody else moved the collection.
        except (Determinate, NotWritable):
            may_seal = False
        except BadInput:
            # A handover gave the collection to a source. The rule refuses that with its own error.
            if not controller.describe(reader.info.collection_id).holding.is_fed:
                raise
        except (HandleExpired, HandoverInProgress, Indeterminate):
            failures += 1
            if failures == _FAILURES:
                raise


def complete_with(
    open_to_write: Callable[[], PersistClient],
    controller: StorageController,
    reader: CollectionReader,
    time: int,
    what: str,
    instead: str,
) -> int:
    """Like `complete`, for a `controller` that only reads: opens a client that may write if a seal is needed.

    `reader` is a reader of `controller`. If that client can't be opened, nothing is sealed.
    """
    try:
        return complete(controller, reader, time, what, instead)
    except AsOfNotYetAvailable as refused:
        if refused.upper <= LEAST_MS or time > controller.client.store_or_host_ms():
            raise
        try:
            client = open_to_write()
        except HoldfastError:
            raise refused from None
        with client, StorageController(client) as writing:
            return _complete(writing, controller.client, reader, time, what, instead)


def begin_at_present(controller: StorageController, collection: str) -> None:
    """Seal a collection that has no complete time up to a moment ago, so that its times are wall times.

    Does nothing if it has one. Raises like `CollectionWriter.seal`.
    """
    if controller.frontiers(collection).upper:
        return
    now_ms = controller.client.store_or_host_ms()
    controller.writer(collection, purpose=controller.purpose_of("create")).seal(now_ms - BEHIND_MS)


def check_follow(client: PersistClient, reader: CollectionReader, time: int, what: str, instead: str) -> None:
    """Raise `AsOfNotYetAvailable` or `BadInput` if changes after `time` can't be followed. Never seals."""
    check_past(time, _known(client, client, reader, time, may_seal=False), what, instead)


def _known(
    client: PersistClient, reading: PersistClient, reader: CollectionReader, time: int, *, may_seal: bool
) -> Completeness:
    upper, since = reader.upper(), reader.since()
    complete = time < upper
    return Completeness(
        since=since,
        upper=upper,
        # Complete times need no clock.
        store_ms=None if complete else client.store_ms(),
        now_ms=0 if complete else client.store_or_host_ms(),
        may_seal=may_seal,
        is_fed=reader.info.holding.is_fed,
        last_seal=None if complete else last_seal(reading, reader.info.holding),
    )


def last_seal(client: PersistClient, rendition: RenditionInfo) -> ReadSeal | None:
    """The last seal for a read, in the version of a rendition that this client has cached."""
    return ReadSeal.last(client.known_writers(rendition.shards[0]))
