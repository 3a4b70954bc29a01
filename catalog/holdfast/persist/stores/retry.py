# ruff: noqa: D102 - the traits document their methods
"""Retries store calls until a deadline, if a retry can't change what happened.

Retries happen at three levels:

- The machine of a shard retries its own reads, uploads and commits for `retry_deadline_s`. It settles a
  commit of unknown outcome by reading. The layers here don't retry these calls, because that would multiply
  the deadlines.
- The layers of a client retry the calls that no machine makes. While a location is being opened, these are
  all calls, for `retry_deadline_s`. Later they are `delete`, `list` and `clock_ms` of blobs, and `truncate`
  and `list_keys` of logs, for at most `UNSUPERVISED_S`. Most of these calls clean up, which happens again
  later, and an append that has failed must not wait for it.
- A store sends a request again a few times within a second, if the request failed fast. It does not do so
  after a timeout.

Invariants:

- An error that is `lasting` is never retried.
- `Determinate` is retried. `Indeterminate` is retried for reads, which have no effect, and for calls that can
  be repeated: `put` (keys are written once) and `delete`. A repeated delete returns what the last attempt
  found.
- A `compare_and_set` or `truncate` of unknown outcome is not repeated. The first attempt may have happened,
  and the result of the second attempt would be about another state.
- If a call ends with a refusal after an attempt of unknown outcome, it raises `Indeterminate`: that attempt
  may have happened.
- A listing that fails halfway continues after the last key that it returned.
- Waits are random and grow. All waiting and timing uses the clock.
"""

import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa

from holdfast.errors import Determinate, Indeterminate
from holdfast.persist.clock import Clock, TimeLeft
from holdfast.persist.stores.layer import BlobLayer, ConsensusLayer
from holdfast.persist.stores.traits import (
    NOTHING_KNOWN,
    Blob,
    BlobMeta,
    Consensus,
    Digest,
    Entry,
    Expect,
    Head,
    LogRow,
    Put,
)

T = TypeVar("T")

FIRST_WAIT_S: Final = 0.01
LAST_WAIT_S: Final = 1.0
UNSUPERVISED: Final = frozenset({"delete", "list", "clock_ms", "digests", "truncate", "list_keys", "mark"})
"""The calls that no machine makes within a retry of its own."""
UNSUPERVISED_S: Final = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How many seconds to retry, as `TimeLeft` counts them, and which calls by name (None: all)."""

    deadline_s: float
    calls: frozenset[str] | None = None
    clock: Clock = field(default_factory=Clock)
    chance: random.Random = field(default_factory=random.Random)

    def run(self, call: str, act: Callable[[], T], *, again_if_unknown: bool) -> T:
        """Do `act` until it returns, or no time is left for another attempt."""
        if self.calls is not None and call not in self.calls:
            return act()
        left = TimeLeft(self.clock, self.deadline_s)
        longest = FIRST_WAIT_S
        unknown: Indeterminate | None = None
        while True:
            try:
                return act()
            except (Determinate, Indeterminate) as error:
                wait_s = self.chance.uniform(longest / 2, longest)
                is_final = isinstance(error, Indeterminate) and not again_if_unknown
                if isinstance(error, Indeterminate):
                    unknown = error
                if is_final or error.lasting or wait_s > left.after_attempt():
                    if unknown is None or unknown is error:
                        raise
                    message = f"{error}; an earlier attempt may have happened: {unknown}"
                    raise Indeterminate(message, hint=error.hint) from error
            left.wait(wait_s)
            longest = min(2 * longest, LAST_WAIT_S)


class RetryingBlob(BlobLayer):
    """Retries failed calls of `inner` as `policy` says."""

    def __init__(self, inner: Blob, policy: RetryPolicy) -> None:
        super().__init__(inner)
        self._policy: Final = policy

    def get(self, key: str) -> bytes | None:
        return self._again("get", lambda: self.inner.get(key))

    def get_start(self, key: str, most: int) -> bytes | None:
        return self._again("get", lambda: self.inner.get_start(key, most))

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._again("put", lambda: self.inner.put(key, data))

    def delete(self, key: str) -> bool:
        return self._again("delete", lambda: self.inner.delete(key))

    def list(self, prefix: str) -> Iterator[BlobMeta]:
        return _Listing(self.inner, prefix, self._policy)

    def clock_ms(self) -> int | None:
        return self._again("clock_ms", self.inner.clock_ms)

    def open_input(self, key: str, most: int) -> pa.NativeFile | None:
        return self._again("open_input", lambda: self.inner.open_input(key, most))

    def open_spans(self, key: str, size: int, spans: Sequence[tuple[int, int]]) -> pa.NativeFile | None:
        return self._again("open_spans", lambda: self.inner.open_spans(key, size, spans))

    def _again(self, call: str, act: Callable[[], T]) -> T:
        return self._policy.run(call, act, again_if_unknown=True)


class _Listing(Iterator[BlobMeta]):
    """A listing that starts again after a failure, and leaves out what it has returned already."""

    def __init__(self, inner: Blob, prefix: str, policy: RetryPolicy) -> None:
        self._open: Final = partial(inner.list, prefix)
        self._policy: Final = policy
        # Start now, so that a bad prefix raises at once.
        self._found: Iterator[BlobMeta] | None = policy.run("list", self._open, again_if_unknown=True)
        self._last = ""

    def __next__(self) -> BlobMeta:
        meta = self._policy.run("list", self._following, again_if_unknown=True)
        if meta is None:
            raise StopIteration
        self._last = meta.key
        return meta

    def _following(self) -> BlobMeta | None:
        # If this raises, the listing is over, and the next attempt needs a new one.
        found, self._found = self._found or self._open(), None
        meta = next((meta for meta in found if meta.key > self._last), None)
        self._found = found
        return meta


class RetryingConsensus(ConsensusLayer):
    """Retries failed calls of `inner` as `policy` says."""

    def __init__(self, inner: Consensus, policy: RetryPolicy) -> None:
        super().__init__(inner)
        self._policy: Final = policy

    def heads(self, keys: Sequence[str], known: Mapping[str, int] = NOTHING_KNOWN) -> dict[str, Head]:
        return self._policy.run("heads", lambda: self.inner.heads(keys, known), again_if_unknown=True)

    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        return self._policy.run(
            "scan", lambda: self.inner.scan(key, from_seqno, limit), again_if_unknown=True
        )

    def digests(self, key: str, from_seqno: int, limit: int) -> list[tuple[int, Digest]]:
        return self._policy.run(
            "digests", lambda: self.inner.digests(key, from_seqno, limit), again_if_unknown=True
        )

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        return self._policy.run(
            "compare_and_set", lambda: self.inner.compare_and_set(puts, expect), again_if_unknown=False
        )

    def truncate(self, key: str, seqno: int, known: LogRow | None = None) -> int:
        return self._policy.run(
            "truncate", lambda: self.inner.truncate(key, seqno, known), again_if_unknown=False
        )

    def list_keys(self) -> list[str]:
        return self._policy.run("list_keys", self.inner.list_keys, again_if_unknown=True)

    def mark(self) -> Hashable:
        return self._policy.run("mark", self.inner.mark, again_if_unknown=True)
