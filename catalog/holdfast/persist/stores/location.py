"""A location: one blob store and one consensus store that belong together.

Invariants:

- Both stores contain the same random `location_id`: the bytes of blob `location.json` are equal to the first
  entry of consensus key `location`. Any other pair of stores is refused before anything is read or written.
- Consensus decides the id, and the blob copies it. So if several processes create a location at once, one of
  them wins and all agree.
- No client of a location writes anything before its id is in both stores. So if a consensus store contains
  its id and nothing else, its creation was interrupted, and the next open completes it. If it contains more
  and has no partner, it is paired with the wrong blob store.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Self

from holdfast.errors import (
    BadInput,
    CorruptBlob,
    HoldfastError,
    Indeterminate,
    LocationMismatch,
    NoLocation,
    StoreUnreachable,
)
from holdfast.locations import is_name, location_url, named_location
from holdfast.persist.looks import look_again
from holdfast.persist.stores.cache import CacheConfig, CachedBlob
from holdfast.persist.stores.formats import check_format
from holdfast.persist.stores.metrics import MeteredBlob, MeteredConsensus, StoreMetrics
from holdfast.persist.stores.retry import (
    UNSUPERVISED,
    UNSUPERVISED_S,
    RetryingBlob,
    RetryingConsensus,
    RetryPolicy,
)
from holdfast.persist.stores.traits import UNKNOWN_ARGUMENTS, Blob, Consensus, Put
from holdfast.persist.stores.url import arguments_of, lost_hint, open_blob, open_stores

BLOB_KEY = "location.json"
CONSENSUS_KEY = "location"
FORMAT_VERSION = 1
_MOST_BYTES = 4096
# Each round decides, unless another process or a fault interferes.
_MAX_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Location:
    """A blob store and a consensus store whose ids agree."""

    blob: Blob
    consensus: Consensus
    location_id: uuid.UUID
    arguments: str = UNKNOWN_ARGUMENTS
    """How a `holdfast persist` command names the location. It contains no secrets."""

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        blob: str | None = None,
        consensus: str | None = None,
        create: bool = True,
        read_only: bool = False,
        retry_s: float = 0.0,
        metrics: StoreMetrics | None = None,
        cache: CacheConfig | None = None,
        credentials: Mapping[str, str] | None = None,
    ) -> Self:
        """Open the location at `url`, or the location that consists of the stores `blob` and `consensus`.

        `url` may be the name of a location, such as `@prod` (see `holdfast.locations`).
        `metrics` counts the calls, and `cache` keeps blobs. `credentials` have the names of the environment
        variables of AWS and libpq (default: the environment). For `retry_s` seconds, the stores retry the
        calls that `retry` lists for a client's stores.

        Without `create`, or with `read_only`, a missing location raises `StoreUnreachable`. With `read_only`,
        nothing is written anywhere. Raises `BadInput` if a URL is invalid, `StoreUnreachable` if a store
        can't be opened, and `LocationMismatch` if the stores don't belong together, or the blobs are there
        and their consensus store is lost.
        """
        create = create and not read_only
        url, blob, consensus = resolved(url, blob=blob, consensus=consensus)
        open_both = partial(
            open_stores,
            url,
            blob=blob,
            consensus=consensus,
            create=create,
            read_only=read_only,
            credentials=credentials,
        )
        try:
            stores = open_both()
        except NoLocation:
            where = _description_if_used(url, blob, credentials)
            if where is None:
                raise
            # Another process may have created the location after the first try.
            try:
                stores = open_both()
            except NoLocation as error:
                raise LocationMismatch(
                    f"{where} belongs to a location, but {error}",
                    hint=f"check the URL; {lost_hint(arguments_of(url, blob=blob, consensus=consensus))}",
                ) from error
        try:
            opened = cls.of(
                *_retrying(*_metered(*stores, metrics), retry_s, calls=None),
                create=create,
                arguments=arguments_of(url, blob=blob, consensus=consensus),
            )
            layered = _retrying(*_metered(*stores, metrics), min(retry_s, UNSUPERVISED_S), calls=UNSUPERVISED)
            if cache is not None:
                cached = CachedBlob(layered[0], cache, scope=str(opened.location_id))
                return replace(opened, blob=cached, consensus=layered[1])
            return replace(opened, blob=layered[0], consensus=layered[1])
        except BaseException:
            for store in stores:
                store.close()
            raise

    @classmethod
    def of(
        cls, blob: Blob, consensus: Consensus, *, create: bool = True, arguments: str = UNKNOWN_ARGUMENTS
    ) -> Self:
        """Return the location of two open stores. With `create`, give it an id if both stores are empty."""
        agreed = _agree_on_id(blob, consensus, create=create, arguments=arguments)
        return cls(blob, consensus, agreed, arguments)

    def is_there(self) -> bool:
        """Whether both stores have the id of this location now. Reads both."""
        try:
            found = _agree_on_id(self.blob, self.consensus, create=False, arguments=self.arguments)
        except HoldfastError:
            return False
        return found == self.location_id

    def close(self) -> None:
        """Close both stores."""
        self.consensus.close()
        self.blob.close()


def resolved(
    url: str | None, *, blob: str | None, consensus: str | None
) -> tuple[str | None, str | None, str | None]:
    """The URLs of a location, or of its blob store and consensus store, if `url` is a name such as `@prod`.

    Other URLs stay as they are. Raises `BadInput` if there is no such name, or other URLs are given with it.
    """
    if url is None or not is_name(url):
        return url, blob, consensus
    if blob is not None or consensus is not None:
        raise BadInput(f"{url} names a whole location", hint="leave out the URLs of its stores")
    found = named_location(url)
    if found.consensus is None:
        return location_url(found.url), None, None
    return None, location_url(found.url), found.consensus


def _metered(blob: Blob, consensus: Consensus, metrics: StoreMetrics | None) -> tuple[Blob, Consensus]:
    if metrics is None:
        return blob, consensus
    return MeteredBlob(blob, metrics), MeteredConsensus(consensus, metrics)


def _retrying(
    blob: Blob, consensus: Consensus, retry_s: float, *, calls: frozenset[str] | None
) -> tuple[Blob, Consensus]:
    """Return the stores with retries of these calls (None: all). Metrics count each attempt."""
    if retry_s <= 0:
        return blob, consensus
    policy = RetryPolicy(deadline_s=retry_s, calls=calls)
    return RetryingBlob(blob, policy), RetryingConsensus(consensus, policy)


def _description_if_used(
    url: str | None, blob: str | None, credentials: Mapping[str, str] | None
) -> str | None:
    """The description of a blob store that belongs to a location; None if there is no such blob store."""
    try:
        store = open_blob(url, blob, read_only=True, credentials=credentials)
    except NoLocation:
        return None
    try:
        return None if read_location(store) is None else store.description
    finally:
        store.close()


def read_location(blob: Blob) -> bytes | None:
    """Return the bytes in a blob store, for `decode_location`; only the beginning if there are too many."""
    return blob.get_start(BLOB_KEY, _MOST_BYTES + 1)


def encode_location(location_id: uuid.UUID, *, recoveries: int = 0) -> bytes:
    """Encode the bytes that both stores hold. `recoveries` counts how often the logs were restarted."""
    fields: dict[str, object] = {"format": FORMAT_VERSION, "location_id": str(location_id)}
    if recoveries:
        fields["recoveries"] = recoveries
    return json.dumps(fields).encode()


class LocationRecord(NamedTuple):
    """What both stores of a location hold: its id, and how often the logs were restarted."""

    location_id: uuid.UUID
    recoveries: int


def decode_location(data: bytes, where: str) -> LocationRecord:
    """Decode the record of a location.

    Raises `CorruptBlob`, `VersionTooNew` or `Deprecated`, which name `where`.
    """
    try:
        if len(data) > _MOST_BYTES:
            raise ValueError
        fields = json.loads(data)
        version = int(fields["format"])
        check_format(version, FORMAT_VERSION, where=where)
        recoveries = fields.get("recoveries", 0)
        if type(recoveries) is not int or recoveries < 0:
            raise ValueError
        return LocationRecord(uuid.UUID(str(fields["location_id"])), recoveries)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptBlob(where, "the id of a location", repr(data[:40])) from error


def _agree_on_id(blob: Blob, consensus: Consensus, *, create: bool, arguments: str) -> uuid.UUID:
    def decided() -> bytes | None:
        entry = consensus.heads([CONSENSUS_KEY]).get(CONSENSUS_KEY)
        return None if entry is None else entry.data

    for _ in range(_MAX_ROUNDS):
        entry, stored = blob.together([decided, lambda: read_location(blob)])
        if entry is not None and stored is not None:
            return _compare(blob, consensus, entry, stored, arguments)
        # Another process may be creating the location, so every read from now on must be a new one.
        look_again()
        if entry is None and stored is None:
            _create_entry(blob, consensus, create=create)
            look_again()
        elif entry is not None:
            _complete_blob(blob, consensus, entry, create=create)
        elif consensus.heads([CONSENSUS_KEY]):
            continue  # another process created the location between the two reads
        else:
            raise LocationMismatch(
                f"{blob.description} belongs to a location, but {consensus.description} does not",
                hint=f"use the consensus store that was created with this blob store; {lost_hint(arguments)}",
            )
    raise StoreUnreachable(
        f"could not agree on the id of the location in {consensus.description} within {_MAX_ROUNDS} attempts",
        hint="try again; if the error persists, check the store for errors",
    )


def _compare(blob: Blob, consensus: Consensus, entry: bytes, stored: bytes, arguments: str) -> uuid.UUID:
    decided = decode_location(entry, f"{CONSENSUS_KEY} in {consensus.description}")
    followed = decode_location(stored, f"{BLOB_KEY} in {blob.description}")
    if decided.location_id != followed.location_id:
        raise LocationMismatch(
            f"{blob.description} and {consensus.description} belong to different locations",
            hint="use two stores that were created together",
        )
    if decided != followed:
        raise LocationMismatch(
            f"{blob.description} and {consensus.description} differ in how often they were recovered",
            hint="one is an older copy, or a recovery was interrupted; run it again: holdfast persist recover"
            f" {arguments}",
        )
    return decided.location_id


def _create_entry(blob: Blob, consensus: Consensus, *, create: bool) -> None:
    """Try to create a new id. The next round reads the outcome."""
    if not create:
        raise NoLocation(
            f"no location in {consensus.description} and {blob.description}",
            hint="check the URL; the first client that writes creates the location",
        )
    foreign = next((meta.key for meta in blob.list("") if meta.key != BLOB_KEY), None)
    if consensus.heads([CONSENSUS_KEY]):
        return  # another process created the location meanwhile; the listing may show its objects
    if foreign is not None:
        raise LocationMismatch(
            f"{blob.description} has no {BLOB_KEY}, but it has other objects, such as {foreign}",
            hint=f"choose an empty blob store, or restore {BLOB_KEY} and the consensus store from a backup",
        )
    try:
        consensus.compare_and_set([Put(CONSENSUS_KEY, 1, encode_location(uuid.uuid4()))])
    except Indeterminate:
        return


def _complete_blob(blob: Blob, consensus: Consensus, entry: bytes, *, create: bool) -> None:
    """Copy to the blob what consensus decided, unless the two stores never belonged together."""
    decode_location(entry, f"{CONSENSUS_KEY} in {consensus.description}")
    used = [key for key in consensus.list_keys() if key != CONSENSUS_KEY]
    foreign = next((meta.key for meta in blob.list("") if meta.key != BLOB_KEY), None)
    if read_location(blob) is not None:
        return  # another process completed the location meanwhile; the listing may show its objects
    if used or foreign is not None:
        raise LocationMismatch(
            f"{consensus.description} belongs to a location, but {blob.description} has no {BLOB_KEY}",
            hint="use the blob store that was created with this consensus store, or a backup of it",
        )
    if not create:
        raise NoLocation(
            f"the location in {consensus.description} was never completed",
            hint="open it once with a client that writes",
        )
    try:
        blob.put(BLOB_KEY, entry)
    except Indeterminate:
        return
