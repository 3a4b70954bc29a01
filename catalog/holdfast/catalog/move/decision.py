"""Decides by hand which of two stores is the catalog, if the stores can't show it, or against what they show.

A decision links the two stores again under another number, and a user names the source of truth. What only
the other store holds is given up. It consists of these commits. Nobody can open the stores between the first
of them and the one that removes its mark:

1. persist gets the mark (`config.SETTLING`) and the new number, and loses its note of the truth;
2. the stash gets a token above both, the number and its tombstone, and loses its note;
3. persist gets the token, and its tombstone once more;
4. the upper of the truth is moved beyond any time that somebody may know of either store;
5. persist loses the mark, and the truth gets its note. Its earlier contents are not part of its history.

Invariants
- An interrupted decision can be made again from the first commit, by any process and for either store: the
  contents of both are untouched.
- Before a tombstone of the stash changes, persist no longer says that it is the truth. Before anybody can
  determine the truth again, everybody who had one of the stores open is fenced.
- Of two decisions the later one counts: each continues only while the number of its own link is on persist.
- Nothing is decided if the stores have changed since the user looked at them.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from holdfast.catalog import config
from holdfast.catalog.fence import FenceToken
from holdfast.catalog.move.hashed import contents_of
from holdfast.catalog.move.held_stores import HeldStores
from holdfast.catalog.move.link import Linked, ToLink, decides_on_persist, links_stash, strategy_kept
from holdfast.catalog.move.linked import LinkedCatalog
from holdfast.catalog.move.records import ending_with
from holdfast.catalog.move.seen import Seen
from holdfast.catalog.move.standing import refuse_running
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.move.two_stores import (
    TwoStores,
    new_number,
    next_token,
    of_generation,
    pauses,
    read_both,
)
from holdfast.catalog.move.verify import RowsDigest, digests_of, sizes_of
from holdfast.catalog.stores.preamble import caught_up, committed
from holdfast.catalog.upgrade_report import Size
from holdfast.errors import CatalogOutOfSync, Fenced, HoldfastError, LinkConflict, Uninitialized

_log = logging.getLogger(__name__)

FAR = 10**9
"""How far the upper of the chosen store is moved beyond all known times. Nobody commits this often to a store
that is lost, or to a state of it that was not restored."""


@dataclass(frozen=True)
class Decision:
    """The effect of making `truth` the catalog, given the stores as they were when they were read.

    `told` is the truth that the stores themselves show, or None if they can't, for the reason in `conflict`.
    `digests` are of the contents of each store, by object type name. They are None if a store has no catalog,
    or can't be read for the reason in `unreadable`.
    """

    truth: Backend
    told: Backend | None
    conflict: LinkConflict | None
    seen: Seen
    places: Mapping[Backend, str]
    digests: Mapping[Backend, Mapping[str, RowsDigest] | None]
    unreadable: Mapping[Backend, HoldfastError]

    @property
    def gives_up(self) -> bool:
        """Whether there is something to decide: the stores neither show this truth nor would link with it."""
        return self.told is not self.truth

    def sizes(self, backend: Backend) -> Mapping[str, Size] | None:
        """The size of a store's contents, by object type name."""
        digests = self.digests[backend]
        return None if digests is None else sizes_of(digests)

    @property
    def same(self) -> bool:
        """Whether both stores hold the same contents, so that nothing would be lost."""
        kept, given_up = self.digests[self.truth], self.digests[self.truth.other]
        return kept is not None and kept == given_up


def decision(catalog: LinkedCatalog, truth: Backend) -> Decision:
    """Determine the effect of a decision. Changes nothing and fences nobody.

    Raises `Uninitialized` if `truth` has no catalog but the other store has one. Raises the errors
    of an open of `truth`, and `MigrationInProgress` if the stores show the truth and a migration is running.
    """
    told, conflict = None, None
    with catalog.stores.opened("rehearsal of a decision") as stores:
        seen = read_both(stores)
        try:
            told = stores.linkage(seen).truth
        except LinkConflict as error:
            conflict = error
        # If nothing is to be given up, the contents need not be read.
        digests, unreadable = _held(stores, seen, Backend if told is not truth else ())
    has = {backend: seen.of(backend).is_initialized for backend in Backend}
    if has[truth.other] and not has[truth]:
        at, other = stores.places[truth], stores.places[truth.other]
        raise Uninitialized(
            f"there is no catalog in {at}, but there is one in {other}",
            hint="name the store that has the catalog",
        )
    found = Decision(truth, told, conflict, seen, stores.places, digests, unreadable)
    if not found.gives_up:
        return found
    if told is not None:
        refuse_running(seen, catalog.now_ms(), but=None)
    if has[truth]:
        catalog.of(truth).check_open()
    return found


def _held(
    stores: TwoStores, seen: Seen, backends: Iterable[Backend]
) -> tuple[dict[Backend, Mapping[str, RowsDigest] | None], dict[Backend, HoldfastError]]:
    """The contents of each of these stores, or why they can't be read."""
    digests: dict[Backend, Mapping[str, RowsDigest] | None] = dict.fromkeys(Backend)
    unreadable: dict[Backend, HoldfastError] = {}
    for backend in backends:
        at = seen.of(backend)
        if at.is_initialized:
            try:
                digests[backend] = digests_of(contents_of(stores.of(backend), at.upper))
            except HoldfastError as error:
                unreadable[backend] = error
    return digests, unreadable


def decide(
    catalog: LinkedCatalog,
    decision: Decision,
    *,
    deploy_generation: int | None = None,
    holder: str,
    purpose: str = "decision",
    sleep: Callable[[float], None] = time.sleep,
) -> Linked:
    """Make the decision. What only the other store holds is given up, and every process with a store open is
    fenced.

    If it is interrupted, read the stores again, and decide for the same or the other one. `deploy_generation`
    is the greater one of both stores by default.

    Raises `LinkConflict` if the stores have changed, or another decision was begun, since the stores were
    read. Also raises `Fenced`, `StrategyMismatch` and `Indeterminate`.
    """
    claim = catalog.claim(deploy_generation or 0, holder, purpose)
    with catalog.stores.opened(purpose) as stores:
        claim = of_generation(decision.seen, deploy_generation, claim)
        return _Deciding(stores, decision).run(claim, sleep)


class _Deciding:
    """One decision, from its first commit to its last."""

    def __init__(self, stores: TwoStores, decision: Decision) -> None:
        self._stores = stores
        self._decision = decision
        self._truth = decision.truth
        strategy = strategy_kept(decision.seen.stash.config, stores.terms)
        self._link = Linked(new_number(), strategy, self._truth)
        link = ToLink(strategy, self._truth)
        self._wanted = {
            Backend.STASH: links_stash(link, self._link.id),
            Backend.PERSIST: decides_on_persist(link, self._link.id),
        }
        self._seen = read_both(stores)

    def run(self, claim: FenceToken, sleep: Callable[[float], None]) -> Linked:
        """Decide."""
        next_token(self._seen, claim)
        self._mark()
        held = HeldStores(self._stores, self._take_over(claim, sleep))
        try:
            self._move_on(held)
            self._tell(held)
        except CatalogOutOfSync:
            self._look(held)
            raise
        return self._link

    def _mark(self) -> None:
        while True:
            for backend in Backend:
                # Contents that a writer adds meanwhile don't matter for the decision.
                if not self._seen.of(backend).tells_as(self._decision.seen.of(backend)):
                    raise LinkConflict(
                        f"{self._stores.of(backend).place} was changed after it was read: nothing is decided",
                        hint="read both stores again",
                    )
            persist = self._seen.persist
            if committed(self._stores.persist, persist, persist.configured(self._wanted[Backend.PERSIST])):
                self._seen = read_both(self._stores)
                return
            self._seen = read_both(self._stores)

    def _take_over(self, claim: FenceToken, sleep: Callable[[float], None]) -> FenceToken:
        for pause in pauses():
            self._check_mine(self._seen)
            token = next_token(self._seen, claim)
            if all(self._fenced(backend, token) for backend in (Backend.STASH, Backend.PERSIST)):
                return token
            # Another process was taking over when the mark was written. It gets no further than the stash.
            sleep(pause)
            self._seen = read_both(self._stores)
        raise Fenced(token, self._seen.token)

    def _fenced(self, backend: Backend, token: FenceToken) -> bool:
        """Write the token and the config to a store.

        Returns False if the store has a token that isn't lower.
        """
        store = self._stores.of(backend)
        while True:
            at = self._seen.of(backend)
            if backend is Backend.PERSIST:
                self._check_mine(self._seen)
            if at.token is not None and not at.token < token:
                return False
            wanted = dict(self._wanted[backend])
            if backend is Backend.STASH:
                wanted |= ending_with(at.config, self._truth)
            updates = (*at.fence(token), *at.configured(wanted))
            if committed(store, at, updates):
                self._seen = self._seen.where(backend, at.after(updates))
                return True
            self._seen = self._seen.where(backend, caught_up(store, at))

    def _move_on(self, held: HeldStores) -> None:
        seen = self._look(held)
        held.advance(seen, self._truth, max(seen.stash.upper, seen.persist.upper) + FAR)

    def _tell(self, held: HeldStores) -> None:
        seen = self._look(held)
        since = {config.TRUTH_SINCE: seen.of(self._truth).upper}
        unmarked = {config.SETTLING: None}
        if self._truth is Backend.PERSIST:
            held.configure(seen, Backend.PERSIST, {**since, **unmarked, config.TRUTH: 1})
            return
        held.configure(seen, Backend.STASH, since)
        held.configure(self._look(held), Backend.PERSIST, unmarked)
        try:
            held.configure(held.look(), Backend.STASH, {config.TRUTH: 1})
        except Fenced as error:
            # Without the mark anybody may open the catalog, and notes the truth that it finds.
            _log.info("%s", error)

    def _look(self, held: HeldStores) -> Seen:
        """Read both stores. They must have the token and the mark of this decision."""
        seen = held.look()
        self._check_mine(seen)
        return seen

    def _check_mine(self, seen: Seen) -> None:
        persist = seen.persist.config
        if persist.get(config.LINK) != self._link.id or config.SETTLING not in persist:
            raise LinkConflict(
                f"another decision about {self._stores.persist.place} was begun after this one",
                hint="'holdfast migrate status' shows its result",
            )
