"""Takes over both stores of a linked catalog with one token.

One store fences with one append: it writes the new token and fails if the state has changed. Two stores have
no common commit. So a process that opens a linked catalog for writing

1. reads the preambles (fence token and config) of both stores as they were at one moment;
2. checks all reasons to refuse the open, and chooses a token above the tokens of both;
3. appends the token to the stash, and then to persist. Each append expects the state that was read, and
   replaces only a lower token;
4. links the stores under that token, if they aren't linked yet.

The source of truth is moved only under a greater token that is in both stores. So a process whose token was
written to both knows that the truth stays where it is until it is fenced itself. Let A and B be two such
processes. These interleavings are possible:

1. A has finished, and B begins. B fences A in the stash first. If the stash is the truth, A's next commit
   fails. If persist is the truth, A may still commit there until B's second append. That is right, because
   B's open has not returned. B applies A's commits before it returns.
2. A and B read the same state, and A appends to the stash first. B's append fails and changes nothing. B
   reads again. If A's token is not lower than B's, B starts again with a greater one, after a random pause.
   Otherwise B replaces A's token.
3. A has fenced the stash. B reads that, chooses a greater token, and fences both stores. A's append to
   persist fails, A finds a token that is not lower, and starts again. A's open has not returned, so nobody
   relied on it.
4. A has fenced the stash, B replaces A's token there, and then A appends to persist before B does. A's open
   succeeds, though the stash no longer has its token. That is right: if the stash is the truth, A's commits
   fail there at once. If persist is the truth, A may commit until B fences it there, as in 1.
5. A dies after its first append. The stash has its token and persist an older one. The next open chooses a
   token above both. The reverse, a stash whose token is below persist's, never arises this way. It means that
   the stash was restored from an older state or is another one, and raises `LinkConflict`.
6. The outcome of an append is unknown. The open raises `Indeterminate`. The stores are then as in 5, or both
   fenced. In either case the next open works.

A writer that commits contents during step 3 also changes the state that the append expects. Then the store is
read again, the checks are repeated, and the append is tried again.
"""

import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from holdfast.catalog import config
from holdfast.catalog.fence import FenceToken
from holdfast.catalog.move.link import (
    ENDS_ON_PERSIST,
    Linked,
    Terms,
    ToLink,
    begins_on_persist,
    linkage,
    links_stash,
)
from holdfast.catalog.move.notes import has_looked, looked, nonce_of, noted
from holdfast.catalog.move.seen import Seen
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.objects.codec import RowUpdate
from holdfast.catalog.stores.preamble import Preamble, at_latest, caught_up, committed, read_preamble
from holdfast.catalog.stores.store import CatalogStore
from holdfast.errors import AsOfTooEarly, Fenced, StorageError

ATTEMPTS = 12
"""How often an open starts again after others overtook it."""
READINGS = 50
"""How often both stores are read until nothing changes in between."""

_FIRST_PAUSE_S = 0.01
_LAST_PAUSE_S = 1.0

Also = Callable[[Seen, Backend], Iterable[RowUpdate]]
Check = Callable[[Seen], None]


@dataclass(frozen=True)
class TwoStores:
    """The stores of a linked catalog, and the user's options of their link."""

    stash: CatalogStore
    persist: CatalogStore
    terms: Terms = field(default_factory=Terms)

    def of(self, backend: Backend) -> CatalogStore:
        """One of the stores."""
        return self.stash if backend is Backend.STASH else self.persist

    @property
    def places(self) -> Mapping[Backend, str]:
        """The places of the stores, as messages show them. They contain no secrets."""
        return {backend: self.of(backend).location for backend in Backend}

    def linkage(self, seen: Seen) -> Linked | ToLink:
        """How the stores are linked, or are to be linked. See `link.linkage`."""
        return linkage(seen, self.terms, self.places)

    @contextmanager
    def opened(self, purpose: str) -> Iterator["TwoStores"]:
        """The same stores with their own handles, which the block closes."""
        opened = self.another(purpose)
        try:
            yield opened
        finally:
            opened.close()

    def another(self, purpose: str) -> "TwoStores":
        """The same stores with their own handles."""
        stash, persist = (self.of(backend).another(purpose=purpose) for backend in Backend)
        return TwoStores(stash, persist, self.terms)

    def close(self, *, but: CatalogStore | None = None) -> None:
        """Release what the stores hold, except `but`."""
        try:
            if self.stash is not but:
                self.stash.close()
        finally:
            if self.persist is not but:
                self.persist.close()


@dataclass(frozen=True)
class StoreCommit:
    """The updates that one append wrote at time `at`."""

    at: int
    updates: Sequence[RowUpdate]


@dataclass(frozen=True)
class Taken:
    """Both stores under `token`, in the state of `seen`.

    `commits` are the appends of the takeover, by store.
    """

    token: FenceToken
    seen: Seen
    link: Linked
    commits: Mapping[Backend, Sequence[StoreCommit]]


def nothing(_seen: Seen, _backend: Backend) -> Iterable[RowUpdate]:
    """No updates in addition to the fence."""
    return ()


def unchecked(_seen: Seen) -> None:
    """No further reason to refuse."""


def read_both(stores: TwoStores) -> Seen:
    """Read both preambles as they were at one moment.

    Raises `StorageError` if one can't be read, or if they never stop changing.
    """
    stash = _read(stores.stash)
    for _ in range(READINGS):
        persist = _read(stores.persist)
        # The truth and the link change only with a fence token, or under one that is there.
        if stores.stash.upper() == stash.upper:
            return _with_past(stores, Seen(stash, persist))
        again = _read(stores.stash)
        if again.tells_as(stash):
            return _with_past(stores, Seen(again, persist))
        stash = again
    raise StorageError(
        f"the catalogs in {stores.stash.place} and {stores.persist.place} changed during every attempt to"
        " read both",
        hint="find out who takes them over repeatedly, and try again after that",
    )


def _with_past(stores: TwoStores, seen: Seen) -> Seen:
    """Compare the past of a store with the other's note, if its token is not the noted one."""
    for backend in Backend:
        at, known = seen.of(backend), noted(seen, backend)
        if known is None or known[0] >= at.upper or known[1] == nonce_of(at):
            continue
        try:
            then = read_preamble(stores.of(backend), known[0])
        except AsOfTooEarly:
            # That time is no longer readable.
            continue
        if nonce_of(then) != known[1]:
            return replace(seen, other_past=backend)
    return seen


def _read(store: CatalogStore) -> Preamble:
    return at_latest(store, lambda seen: seen)


def next_token(seen: Seen, claim: FenceToken) -> FenceToken:
    """The token to take both over with: the epoch after both, or the epoch of `claim` if that is greater.

    Raises `Fenced` if the generation of `claim` is below that of a store.
    """
    after = claim
    for backend in Backend:
        durable = seen.of(backend).token
        following = claim.after(durable)
        following.check_generation(durable)
        after = max(after, following, key=lambda token: token.epoch)
    return after


def of_generation(seen: Seen, deploy_generation: int | None, claim: FenceToken) -> FenceToken:
    """The claim with the durable generation, if none is given."""
    generations = [token.deploy_generation for token in (seen.stash.token, seen.persist.token) if token]
    generation = max(generations, default=0) if deploy_generation is None else deploy_generation
    return replace(claim, deploy_generation=generation)


def take_over_both(
    stores: TwoStores,
    claim: FenceToken,
    *,
    also: Also = nothing,
    check: Check = unchecked,
    sleep: Callable[[float], None] = time.sleep,
) -> Taken:
    """Put one token into both stores, and link them if they aren't linked.

    `check` is called after every read of the stores, and raises an error to refuse. It is always called
    before the first append. If somebody else changes the second store after that, it is called again before
    the second append. `also` returns the updates that are written in the same append as the fence of a store.
    It gets the state that the append expects. The token has at least the epoch of `claim`.

    Raises `Fenced` for a generation below the durable one, and if others took over at every attempt. Raises
    `LinkConflict`, `StrategyMismatch`, what `check` raises, and `Indeterminate`.
    """
    left = pauses()
    while True:
        taking = _Taking(stores, check)
        try:
            return taking.run(claim, also)
        except _ChangedError:
            continue
        except _OvertakenError as error:
            pause = next(left, None)
            if pause is None:
                raise error.fenced from None
            sleep(pause)


def new_number() -> int:
    """A random number for a link. No other link has it."""
    return 1 + secrets.randbelow((1 << 63) - 1)


def pauses() -> Iterator[float]:
    """The pauses before the next attempts, in seconds: longer each time, and random."""
    pause = _FIRST_PAUSE_S
    for _ in range(ATTEMPTS):
        # Two processes that overtake each other must not stay in step.
        yield pause * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
        pause = min(2 * pause, _LAST_PAUSE_S)


class _ChangedError(Exception):
    """Somebody changed a store before anything was written to it: start again."""


class _OvertakenError(Exception):
    """Somebody has a token that is not lower: start again, with a greater one."""

    def __init__(self, fenced: Fenced) -> None:
        super().__init__(str(fenced))
        self.fenced = fenced


class _Taking:
    """One attempt to take over both stores."""

    def __init__(self, stores: TwoStores, check: Check) -> None:
        self._stores = stores
        self._check = check
        self._seen = read_both(stores)
        self._commits: dict[Backend, list[StoreCommit]] = {backend: [] for backend in Backend}

    def run(self, claim: FenceToken, also: Also) -> Taken:
        link = self._stores.linkage(self._seen)
        self._token = next_token(self._seen, claim)
        self._check(self._seen)
        if isinstance(link, ToLink):
            self._fence_both(nothing)
            self._link()
        self._fence_both(also)
        # The truth can't have moved since: that needs another token on persist.
        linked = self._stores.linkage(self._seen)
        assert isinstance(linked, Linked)
        return Taken(self._token, self._seen, linked, self._commits)

    def _fence_both(self, also: Also) -> None:
        for backend in (Backend.STASH, Backend.PERSIST):
            self._fence(backend, also)

    def _fence(self, backend: Backend, also: Also) -> None:
        while True:
            seen = self._seen.of(backend)
            updates = (*seen.fence(self._token), *also(self._seen, backend), *self._noting(backend))
            if not updates or self._append(backend, updates):
                return
            self._reread(backend)
            if backend is Backend.STASH and seen.token != self._token and not seen.tells_as(self._seen.stash):
                # Nothing is written yet: read both again at one moment.
                raise _ChangedError
            self._stores.linkage(self._seen)
            self._check(self._seen)

    def _noting(self, backend: Backend) -> tuple[RowUpdate, ...]:
        """The notes about the other store that a store gets with its fence."""
        seen = self._seen.of(backend)
        if config.LINK not in seen.config or (seen.token == self._token and has_looked(self._seen, backend)):
            return ()
        return seen.configured(looked(self._seen, backend))

    def _link(self) -> None:
        # Decide from the contents of both under the token, not from what they were before.
        link = self._stores.linkage(self._seen)
        if isinstance(link, Linked):
            return
        if link.finishing is None:
            # Never reuse the number of an interrupted link: its process may only be slow, and use another
            # stash.
            number = new_number()
            self._write(Backend.PERSIST, begins_on_persist(link, number))
            self._write(Backend.STASH, links_stash(link, number))
        self._write(Backend.PERSIST, ENDS_ON_PERSIST)

    def _write(self, backend: Backend, wanted: Mapping[str, int | None]) -> None:
        updates = self._seen.of(backend).configured(wanted)
        if updates and not self._append(backend, updates):
            self._reread(backend)
            raise _ChangedError

    def _append(self, backend: Backend, updates: Sequence[RowUpdate]) -> bool:
        seen = self._seen.of(backend)
        if not committed(self._stores.of(backend), seen, updates):
            return False
        self._commits[backend].append(StoreCommit(seen.upper, updates))
        self._seen = self._seen.where(backend, seen.after(updates))
        return True

    def _reread(self, backend: Backend) -> None:
        """Read a store that somebody changed. Raises `_OvertakenError` if somebody has taken it over."""
        found = caught_up(self._stores.of(backend), self._seen.of(backend))
        durable = found.token
        if durable is not None and durable != self._token and not durable < self._token:
            raise _OvertakenError(Fenced(self._token, durable))
        self._seen = self._seen.where(backend, found)
