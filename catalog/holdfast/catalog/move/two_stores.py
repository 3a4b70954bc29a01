"""Both stores of a linked catalog, taken over with one token.

Invariants
- A token T is written to the stash first, then to persist, each time by one append that is conditional on
  the state that was read, and only over a lower one. Who holds T in both knows that the truth stays where it
  is: who would move it needs a greater token in both, and fences this one by it.
- What is refused is refused before the first append: generation, link, and what the caller checks.
- Two stores that aren't linked yet are linked under T, before anything else is written to them.
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
from holdfast.catalog.objects.codec import Update
from holdfast.catalog.stores.preamble import Preamble, at_latest, caught_up, committed, read_preamble
from holdfast.catalog.stores.store import CatalogStore
from holdfast.errors import AsOfTooEarly, Fenced, StorageError

ATTEMPTS = 12
"""How often an open that others overtake begins anew."""
READINGS = 50
"""How often both stores are read, until nothing changed meanwhile."""

_FIRST_PAUSE_S = 0.01
_LAST_PAUSE_S = 1.0

Also = Callable[[Seen, Backend], Iterable[Update]]
Check = Callable[[Seen], None]


@dataclass(frozen=True)
class TwoStores:
    """The stores of a linked catalog, and what the user says of their link."""

    stash: CatalogStore
    persist: CatalogStore
    terms: Terms = field(default_factory=Terms)

    def of(self, backend: Backend) -> CatalogStore:
        """One of them."""
        return self.stash if backend is Backend.STASH else self.persist

    @property
    def places(self) -> Mapping[Backend, str]:
        """Where they are, as messages say it; no secrets."""
        return {backend: self.of(backend).location for backend in Backend}

    def linkage(self, seen: Seen) -> Linked | ToLink:
        """How they are linked, or are to be; see `link.linkage`."""
        return linkage(seen, self.terms, self.places)

    @contextmanager
    def opened(self, purpose: str) -> Iterator["TwoStores"]:
        """The same stores with handles of their own, which are closed at the end."""
        opened = self.another(purpose)
        try:
            yield opened
        finally:
            opened.close()

    def another(self, purpose: str) -> "TwoStores":
        """The same stores with handles of their own."""
        stash, persist = (self.of(backend).another(purpose=purpose) for backend in Backend)
        return TwoStores(stash, persist, self.terms)

    def close(self, *, but: CatalogStore | None = None) -> None:
        """Give up what both hold, or the one beside `but`."""
        try:
            if self.stash is not but:
                self.stash.close()
        finally:
            if self.persist is not but:
                self.persist.close()


@dataclass(frozen=True)
class StoreCommit:
    """What one append at time `at` wrote."""

    at: int
    updates: Sequence[Update]


@dataclass(frozen=True)
class Taken:
    """Both stores under `token`, as of `seen`; `commits` are those that it took, by store, in order."""

    token: FenceToken
    seen: Seen
    link: Linked
    commits: Mapping[Backend, Sequence[StoreCommit]]


def nothing(_seen: Seen, _backend: Backend) -> Iterable[Update]:
    """No updates beside the fence."""
    return ()


def unchecked(_seen: Seen) -> None:
    """No further reason to refuse."""


def read_both(stores: TwoStores) -> Seen:
    """Both preambles, as they were at one time.

    Raises `StorageError` where one can't be read, or where they never stop changing.
    """
    stash = _read(stores.stash)
    for _ in range(READINGS):
        persist = _read(stores.persist)
        # What tells truth and link changes with a fence token, or under one that is there.
        if stores.stash.upper() == stash.upper:
            return _with_past(stores, Seen(stash, persist))
        again = _read(stores.stash)
        if again.tells_as(stash):
            return _with_past(stores, Seen(again, persist))
        stash = again
    raise StorageError(
        f"the catalogs in {stores.stash.place} and {stores.persist.place} changed whenever they were read",
        hint="find out who takes them over again and again, and try it then",
    )


def _with_past(stores: TwoStores, seen: Seen) -> Seen:
    """Compare the past of each store with what the other one noted, where its token is another one now."""
    for backend in Backend:
        at, known = seen.of(backend), noted(seen, backend)
        if known is None or known[0] >= at.upper or known[1] == nonce_of(at):
            continue
        try:
            then = read_preamble(stores.of(backend), known[0])
        except AsOfTooEarly:
            # Nobody can tell any more.
            continue
        if nonce_of(then) != known[1]:
            return replace(seen, other_past=backend)
    return seen


def _read(store: CatalogStore) -> Preamble:
    return at_latest(store, lambda seen: seen)


def next_token(seen: Seen, claim: FenceToken) -> FenceToken:
    """The token to take both over with: the epoch after both, or that of `claim` where it is greater.

    `Fenced` where the generation of `claim` is below that of one of them.
    """
    after = claim
    for backend in Backend:
        durable = seen.of(backend).token
        following = claim.after(durable)
        if durable is not None and claim.deploy_generation < durable.deploy_generation:
            raise Fenced(following, durable)
        after = max(after, following, key=lambda token: token.epoch)
    return after


def of_generation(seen: Seen, deploy_generation: int | None, claim: FenceToken) -> FenceToken:
    """The claim with the durable generation, where none is asked for."""
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
    """Put one token into both stores, and link them where they aren't.

    `check` is called for every new reading and refuses by raising: before the first append, or, where
    somebody changes the second store meanwhile, before that one is changed. `also` gives what is written to
    a store in the same append as its fence; it is asked with what that append is conditional on. The epoch of
    `claim` is the least that the token has.

    Raises `Fenced` for a generation below the durable one, and when others took over each time;
    `LinkConflict`, `StrategyMismatch`, what `check` does, and `Indeterminate`.
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
    """A number for a link, that no other has."""
    return 1 + secrets.randbelow((1 << 63) - 1)


def pauses() -> Iterator[float]:
    """How long to wait before the next attempt, in seconds: longer each time, and never the same."""
    pause = _FIRST_PAUSE_S
    for _ in range(ATTEMPTS):
        # Two that overtake one another must not keep step.
        yield pause * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
        pause = min(2 * pause, _LAST_PAUSE_S)


class _ChangedError(Exception):
    """Somebody changed a store before anything was written to it: begin anew."""


class _OvertakenError(Exception):
    """Somebody has a token that is not lower: begin anew, with a greater one."""

    def __init__(self, fenced: Fenced) -> None:
        super().__init__(str(fenced))
        self.fenced = fenced


class _Taking:
    """One attempt to take both stores over."""

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
        # Nobody can have moved the truth since: he would have to fence persist.
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
                # Nothing is written yet: both are to be read at one time.
                raise _ChangedError
            self._stores.linkage(self._seen)
            self._check(self._seen)

    def _noting(self, backend: Backend) -> tuple[Update, ...]:
        """What a store notes about the other one together with its fence."""
        seen = self._seen.of(backend)
        if config.LINK not in seen.config or (seen.token == self._token and has_looked(self._seen, backend)):
            return ()
        return seen.configured(looked(self._seen, backend))

    def _link(self) -> None:
        # Decided by what both hold under the token, not by what they held before.
        link = self._stores.linkage(self._seen)
        if isinstance(link, Linked):
            return
        if link.finishing is None:
            # Never that of a link that broke off: who began it may only be slow, and with another stash.
            number = new_number()
            self._write(Backend.PERSIST, begins_on_persist(link, number))
            self._write(Backend.STASH, links_stash(link, number))
        self._write(Backend.PERSIST, ENDS_ON_PERSIST)

    def _write(self, backend: Backend, wanted: Mapping[str, int | None]) -> None:
        updates = self._seen.of(backend).configured(wanted)
        if updates and not self._append(backend, updates):
            self._reread(backend)
            raise _ChangedError

    def _append(self, backend: Backend, updates: Sequence[Update]) -> bool:
        seen = self._seen.of(backend)
        if not committed(self._stores.of(backend), seen, updates):
            return False
        self._commits[backend].append(StoreCommit(seen.upper, updates))
        self._seen = self._seen.where(backend, seen.after(updates))
        return True

    def _reread(self, backend: Backend) -> None:
        """Take the state of a store that somebody changed, unless he has taken it over."""
        found = caught_up(self._stores.of(backend), self._seen.of(backend))
        durable = found.token
        if durable is not None and durable != self._token and not durable < self._token:
            raise _OvertakenError(Fenced(self._token, durable))
        self._seen = self._seen.where(backend, found)
