"""How two stores are linked, decided from their configs, and what a link writes. Pure.

A link is three appends under one token that is durable in both stores: mark persist, link the stash (the
point of no return), and complete persist's mark. If it is interrupted before the second append, the next open
decides again, with another number. After the second append, it completes the link. A stash that was linked
under a number that persist no longer has belongs to no link.

Invariants
- For two stores that were never linked, the truth is decided only if one result is certain.
- Both stores hold the number of their link. A number that doesn't match, or is missing, is a conflict that
  people must solve. An empty or stale stash must never be taken for the truth.
- The token of the stash is never below persist's, because it is written to the stash first. If it is, this is
  not the stash of the link, or an older state of it.
- Every note of the truth (`config.TRUTH`) agrees with the tombstones.
- Neither store is older than the other one has noted it, and the truth holds what the last move wrote (see
  `notes`). A truth without a catalog is initialized only if nothing shows that there was one.
- While somebody decides by hand which store counts (`config.SETTLING`), neither does. See `decision`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from holdfast.catalog import config
from holdfast.catalog.damage import corrupt
from holdfast.catalog.move import notes as noted_by
from holdfast.catalog.move.seen import Seen
from holdfast.catalog.move.truth import (
    NUMBERS,
    Backend,
    Strategy,
    named,
    source_of_truth,
    tombstone,
)
from holdfast.errors import LinkConflict, StrategyMismatch

_DECIDE = (
    "if that is impossible, 'holdfast migrate link --truth stash|persist' shows what would be lost, and"
    " decides with --accept-loss"
)
_ENDED = (
    "if the URL of persist is wrong, correct it; if persist was lost, restore it from a backup; if it was"
    f" detached, use it without the stash, or with an empty one for a new link; {_DECIDE}"
)
_NOT_EACH_OTHER = f"use the two stores that were linked, or an empty stash for a new link; {_DECIDE}"
_LOST = (
    "use the stash that it was linked with; if that is lost for good: 'holdfast migrate detach --stash-lost'"
)
_LOST_WITH_IT = (
    "use the stash that it was linked with: it may hold the catalog; if that is lost for good, 'holdfast"
    " migrate detach --stash-lost' shows what would be lost with it, and accepts that with --accept-loss"
)
_NAMES = {Backend.STASH: "stash", Backend.PERSIST: "catalog"}
_NEWEST = f"bring back the newest state of the store that was restored; {_DECIDE}"


@dataclass(frozen=True)
class Terms:
    """The user's options of a link. `backend` becomes the truth if neither store has a catalog yet.

    `strategy` None means the strategy of the link, or ONE_TOMBSTONE for a new one. `truth` names the store
    that counts if two unlinked stores can't show it. Once they are linked it has no effect, so you can keep
    passing it.
    """

    backend: Backend = Backend.PERSIST
    strategy: Strategy | None = None
    truth: Backend | None = None


@dataclass(frozen=True)
class Linked:
    """Two linked stores, and which of them is the source of truth."""

    id: int
    strategy: Strategy
    truth: Backend


@dataclass(frozen=True)
class ToLink:
    """Two stores that are to be linked, with the properties of their link.

    `finishing` is the number of a link whose last append is missing. None: the link gets a new number.
    """

    strategy: Strategy
    truth: Backend
    finishing: int | None = None


def linkage(seen: Seen, terms: Terms, places: Mapping[Backend, str]) -> Linked | ToLink:
    """How the stores are linked, or are to be linked. `places` names them in messages.

    Raises `LinkConflict`, `StrategyMismatch`, and `CorruptBlob` for invalid config.
    """
    stash, persist = seen.stash.config, seen.persist.config
    ours, theirs = stash.get(config.LINK), persist.get(config.LINK)
    if config.SETTLING in persist:
        _refuse_undecided(named(persist, config.SETTLING), places)
    if theirs is not None:
        config.check_stored(config.STASH_LINKED, persist.get(config.STASH_LINKED, 1))
    broke_off = persist.get(config.STASH_LINKED) == 0
    if ours is None and (theirs is None or broke_off):
        if broke_off and terms.truth is None:
            _check_begun_with(seen, places)
        return _to_link(seen, terms, places)
    if ours != theirs:
        _refuse(places, ours, theirs, lost=persist.get(config.TRUTH) == 1)
    assert ours is not None
    strategy = strategy_kept(stash, terms)
    truth = source_of_truth(strategy, stash, persist)
    _check_states(seen, strategy, truth, places)
    return ToLink(strategy, truth, finishing=ours) if broke_off else Linked(ours, strategy, truth)


def begins_on_persist(link: ToLink, number: int) -> Mapping[str, int | None]:
    """The changes of persist's config in the first append of a link."""
    two = link.strategy is Strategy.TWO_TOMBSTONES and link.truth is Backend.PERSIST
    return {
        config.LINK: number,
        config.STASH_LINKED: 0,
        config.TOMBSTONE: 0 if two else None,
        config.TRUTH: None,
        **noted_by.NO_NOTES,
    }


def links_stash(link: ToLink, number: int) -> Mapping[str, int | None]:
    """The changes of the stash's config in the second append. After it the stores are linked."""
    return {
        config.LINK: number,
        config.MIGRATION_STRATEGY: link.strategy.value,
        config.TOMBSTONE: 1 if link.truth is Backend.PERSIST else None,
        config.TRUTH: None,
        **noted_by.NO_NOTES,
    }


def decides_on_persist(link: ToLink, number: int) -> Mapping[str, int | None]:
    """The changes of persist's config while somebody decides by hand for the truth of `link`."""
    marks = {config.STASH_LINKED: 1, config.SETTLING: NUMBERS[link.truth]}
    return {**begins_on_persist(link, number), **marks}


ENDS_ON_PERSIST: Mapping[str, int | None] = {config.STASH_LINKED: 1}
"""The changes of persist's config in the last append."""

UNLINKED: Mapping[str, int | None] = {
    **dict.fromkeys((config.LINK, config.STASH_LINKED, config.TOMBSTONE, config.TRUTH, config.SETTLING)),
    **noted_by.NO_NOTES,
}
"""The changes of persist's config when its link is ended."""


def _to_link(seen: Seen, terms: Terms, places: Mapping[Backend, str]) -> ToLink:
    with_catalog = [backend for backend in Backend if seen.of(backend).is_initialized]
    match with_catalog:
        case []:
            truth = terms.truth or terms.backend
        case [alone]:
            truth = alone
        case _ if terms.truth is None:
            raise LinkConflict(
                f"{places[Backend.STASH]} and {places[Backend.PERSIST]} each hold a catalog, and they are not"
                " linked",
                hint="'holdfast migrate link --truth stash|persist' chooses the one to keep, and the next"
                " migration overwrites the other one; or link with an empty store",
            )
        case _:
            truth = terms.truth
    return ToLink(terms.strategy or Strategy.ONE_TOMBSTONE, truth)


def _stash_is_behind(seen: Seen) -> bool:
    """Whether persist has a token that the stash never had, or no longer has."""
    ours, theirs = seen.stash.token, seen.persist.token
    return theirs is not None and (ours is None or not theirs <= ours)


def _check_begun_with(seen: Seen, places: Mapping[Backend, str]) -> None:
    """Raise `LinkConflict` if an interrupted link was begun with another stash."""
    if _stash_is_behind(seen):
        raise LinkConflict(
            f"a link of the catalog in {places[Backend.PERSIST]} was begun with another stash than"
            f" {places[Backend.STASH]}, which may hold the catalog",
            hint="use the stash that it was begun with; if this one is right, name the store that counts"
            " (truth): the other stash can't be used with this catalog any more",
        )


def _refuse_undecided(truth: Backend, places: Mapping[Backend, str]) -> NoReturn:
    command = "'holdfast migrate link --truth {} --accept-loss'"
    raise LinkConflict(
        f"a decision that the source of truth of {places[Backend.STASH]} and"
        f" {places[Backend.PERSIST]} is {truth.value} was begun and has not ended",
        hint=f"{command.format(truth.value.lower())} continues it;"
        f" {command.format(truth.other.value.lower())} decides the other way",
    )


def _refuse(places: Mapping[Backend, str], ours: int | None, theirs: int | None, *, lost: bool) -> NoReturn:
    stash, persist = places[Backend.STASH], places[Backend.PERSIST]
    if ours is None:
        raise LinkConflict(
            f"the catalog in {persist} is linked with another stash than {stash}, which was never linked",
            hint=_LOST if lost else _LOST_WITH_IT,
        )
    if theirs is None:
        raise LinkConflict(
            f"the stash in {stash} is linked with a catalog on persist, but no link is recorded in"
            f" {persist}: it was detached, or lost and created again, or it is not the catalog of this stash",
            hint=_ENDED,
        )
    raise LinkConflict(
        f"the stash in {stash} (link {ours}) and the catalog in {persist} (link {theirs}) are not linked with"
        " each other",
        hint=_LOST if lost else _NOT_EACH_OTHER,
    )


def strategy_of(stash: Mapping[str, int]) -> Strategy:
    """The strategy in the config of a linked stash. Raises `CorruptBlob` if there is none."""
    value = stash.get(config.MIGRATION_STRATEGY)
    try:
        return Strategy(value)
    except ValueError:
        raise corrupt(f"config {config.MIGRATION_STRATEGY}", "1 or 2", str(value)) from None


def strategy_kept(stash: Mapping[str, int], terms: Terms) -> Strategy:
    """The strategy of a link, from the stash's config. If the stash is not linked, the requested one.

    Raises `StrategyMismatch` if another strategy was requested, and `CorruptBlob`.
    """
    if config.LINK not in stash:
        return terms.strategy or Strategy.ONE_TOMBSTONE
    strategy = strategy_of(stash)
    if terms.strategy not in (None, strategy):
        raise StrategyMismatch(
            f"the catalog was linked with {strategy.name}, which can't change to {terms.strategy.name}",
            hint=f"give {strategy.name}, or no strategy",
        )
    return strategy


def _check_states(seen: Seen, strategy: Strategy, truth: Backend, places: Mapping[Backend, str]) -> None:
    if _stash_is_behind(seen):
        raise LinkConflict(
            f"the stash in {places[Backend.STASH]} is older than the catalog in {places[Backend.PERSIST]}"
            " that it is linked with: it was restored from an older state, or persist was changed by hand",
            hint=_NEWEST,
        )
    two = strategy is Strategy.TWO_TOMBSTONES
    if two and tombstone(seen.stash.config) is None and tombstone(seen.persist.config) is not None:
        raise LinkConflict(
            f"no migration leaves the tombstones of {places[Backend.STASH]} (none) and"
            f" {places[Backend.PERSIST]} like this: a store was restored from an older state, or changed by"
            " hand",
            hint=_NEWEST,
        )
    noted = [backend for backend in Backend if seen.of(backend).config.get(config.TRUTH) == 1]
    wrong = truth.other
    if wrong in noted:
        also = " also" if len(noted) > 1 else ""
        raise LinkConflict(
            f"the two stores disagree about the source of truth: the tombstones name {truth.value}"
            f" ({places[truth]}), and the notes{also} name {wrong.value} ({places[wrong]}): one store was"
            " restored from an older state",
            hint=_NEWEST,
        )
    _check_notes(seen, truth, places)


def _check_notes(seen: Seen, truth: Backend, places: Mapping[Backend, str]) -> None:
    """Raise `LinkConflict` if a store contradicts the notes of the two stores."""
    older = noted_by.returned(seen) or seen.other_past
    if older is not None:
        raise LinkConflict(
            f"the {_NAMES[older]} in {places[older]} is older than {places[older.other]} has noted: it was"
            " restored from an older state",
            hint=_NEWEST,
        )
    if noted_by.holds_other_contents(seen, truth):
        raise LinkConflict(
            f"the {_NAMES[truth]} in {places[truth]} does not hold the contents of the last migration:"
            " a store was restored from an older state",
            hint=_NEWEST,
        )
    if not seen.of(truth).is_initialized and noted_by.held_a_catalog(seen, truth):
        raise LinkConflict(
            f"the {_NAMES[truth]} in {places[truth]} is empty, but {places[truth.other]} shows that there was"
            " a catalog: a store was lost, or restored from an older state",
            hint=_NEWEST,
        )


def notes(truth: Backend) -> Mapping[Backend, Mapping[str, int | None]]:
    """The changes of both configs that leave the note of the truth in that store only."""
    return {truth: {config.TRUTH: 1}, truth.other: {config.TRUTH: None}}
