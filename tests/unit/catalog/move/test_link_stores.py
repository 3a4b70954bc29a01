"""How two stores are linked, which token they get, and what is refused before any write."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from holdfast.catalog import OpenMode, config
from holdfast.catalog.move.link import Linked, Terms, ToLink
from holdfast.catalog.move.seen import Seen
from holdfast.catalog.move.truth import Backend, Strategy
from holdfast.catalog.move.two_stores import Taken, TwoStores, take_over_both
from holdfast.catalog.objects.codec import Row, RowUpdate
from holdfast.catalog.stores.preamble import read_preamble
from holdfast.catalog.stores.stash import StashStore
from holdfast.catalog.stores.store import CatalogStore
from holdfast.errors import CorruptBlob, Fenced, LinkConflict, LinkedElsewhere, StrategyMismatch
from testbed.linkedstores import WHO, LinkedPlace, claim, contents

ONE, TWO = Strategy.ONE_TOMBSTONE, Strategy.TWO_TOMBSTONES


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LinkedPlace]:
    made = LinkedPlace(tmp_path)
    yield made
    made.close()


def taken(place: LinkedPlace, terms: Terms | None = None, generation: int = 0) -> Taken:
    return take_over_both(place.stores(terms), claim(generation), sleep=lambda _: None)


def linked(place: LinkedPlace, truth: Backend, strategy: Strategy = ONE) -> Taken:
    return taken(place, Terms(backend=truth, strategy=strategy))


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("truth", Backend)
@pytest.mark.parametrize("initialized", [True, False])
def test_a_link_says_which_store_was_the_truth(
    place: LinkedPlace, strategy: Strategy, truth: Backend, *, initialized: bool
) -> None:
    if initialized:
        place.alone(truth).initialize(**WHO)
    # What is there counts, whatever `backend` says.
    backend = truth.other if initialized else truth
    done = taken(place, Terms(backend=backend, strategy=strategy))
    assert (done.link.strategy, done.link.truth) == (strategy, truth)
    stash, persist = place.configs().values()
    assert stash["link"] == persist["link"] == done.link.id
    assert 0 < done.link.id < 1 << 63
    assert persist["stash_linked"] == 1
    assert stash["migration_strategy"] == strategy.value
    assert stash.get("tombstone") == (1 if truth is Backend.PERSIST else None)
    two = strategy is TWO and truth is Backend.PERSIST
    assert persist.get("tombstone") == (0 if two else None)
    # A link initializes nothing, and takes nothing away.
    assert place.seen().of(truth).is_initialized is initialized
    assert not place.seen().of(truth.other).is_initialized
    # The next one finds what it left.
    again = taken(place)
    assert again.link == done.link


def test_one_token_in_both_stores_greater_than_both(place: LinkedPlace) -> None:
    for _ in range(3):
        place.persist().open(OpenMode.WRITABLE, deploy_generation=2, **WHO).close()
    first = taken(place, generation=2)
    assert first.token.rank == (2, 4)
    assert place.seen().stash.token == place.seen().persist.token == first.token
    second = taken(place, generation=3)
    assert second.token.rank == (3, 5)
    assert place.seen().stash.token == place.seen().persist.token == second.token
    # Linked already: one commit in each.
    assert [len(commits) for commits in second.commits.values()] == [1, 1]
    assert second.seen == place.seen()


@pytest.mark.parametrize("ahead", Backend)
def test_a_lower_generation_than_either_is_fenced_before_anything_is_written(
    place: LinkedPlace, ahead: Backend
) -> None:
    linked(place, Backend.STASH)
    token = claim(7).after(place.seen().token)
    # The stash comes first: it is never behind persist.
    for backend in [Backend.STASH] if ahead is Backend.STASH else Backend:
        store = place.stores().of(backend)
        seen = read_preamble(store, store.upper())
        store.append(seen.fence(token), seen.upper)
    before = place.uppers()
    with pytest.raises(Fenced, match="generation 7"):
        taken(place, generation=6)
    assert place.uppers() == before
    assert taken(place, generation=7).token.deploy_generation == 7


def test_what_a_check_refuses_changes_nothing(place: LinkedPlace) -> None:
    def refuse(_: Seen) -> None:
        raise ValueError

    for _ in range(2):
        before = place.uppers()
        with pytest.raises(ValueError):  # noqa: PT011 - its own
            take_over_both(place.stores(), claim(), check=refuse)
        assert place.uppers() == before
        taken(place)


def test_what_goes_with_the_fence_is_one_commit_with_it(place: LinkedPlace) -> None:
    linked(place, Backend.PERSIST)
    place.set_config(Backend.PERSIST, truth=1)

    def also(seen: Seen, backend: Backend) -> tuple[RowUpdate, ...]:
        return seen.of(backend).configured({config.TRUTH: None, "mine": seen.of(backend).upper})

    before = place.uppers()
    done = take_over_both(place.stores(), claim(), also=also)
    assert place.uppers() == tuple(upper + 1 for upper in before)
    for backend, upper in zip(Backend, before, strict=True):
        found = place.seen().of(backend)
        assert found.config["mine"] == upper
        assert found.token == done.token
        assert config.TRUTH not in found.config


class Meddling(CatalogStore):
    """A store beside which somebody does something before an append."""

    def __init__(self, store: CatalogStore, before: Callable[[int], None]) -> None:
        self._store, self._before, self._appends = store, before, count()

    def append(self, *args: object, **options: object) -> None:
        self._before(next(self._appends))
        self._store.append(*args, **options)  # type: ignore[arg-type]

    def __getattribute__(self, name: str) -> object:
        if name in ("append", "_store", "_before", "_appends"):
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "_store"), name)


Meddling.__abstractmethods__ = frozenset()


def meddled(place: LinkedPlace, backend: Backend, before: Callable[[int], None]) -> TwoStores:
    stores = place.stores()
    meddling = Meddling(stores.of(backend), before)
    if backend is Backend.STASH:
        return TwoStores(meddling, stores.persist)
    return TwoStores(stores.stash, meddling)


@pytest.mark.parametrize("backend", Backend)
def test_somebody_who_commits_meanwhile_costs_no_epoch(place: LinkedPlace, backend: Backend) -> None:
    before = linked(place, Backend.STASH).token
    stores = meddled(place, backend, lambda n: place.set_config(backend, mine=n) if n < 2 else None)
    checked: list[Seen] = []
    done = take_over_both(stores, claim(), check=checked.append, sleep=lambda _: pytest.fail("no reason"))
    assert done.token.epoch == before.epoch + 1
    assert place.seen().stash.token == place.seen().persist.token == done.token
    # Each new reading was checked.
    assert [seen.of(backend).config.get("mine") for seen in checked] == [None, 0, 1]
    assert done.seen.of(backend).config["mine"] == 1


@pytest.mark.parametrize("backend", Backend)
def test_who_is_overtaken_waits_and_comes_again_with_a_greater_token(
    place: LinkedPlace, backend: Backend
) -> None:
    before = linked(place, Backend.STASH).token
    pauses: list[float] = []

    def overtake(number: int) -> None:
        if number == 0:
            take_over_both(place.stores(), claim(holder="faster"))

    done = take_over_both(meddled(place, backend, overtake), claim(), sleep=pauses.append)
    # On the stash the other one's token has the same rank, but another nonce: not mine.
    assert done.token.epoch == before.epoch + (2 if backend is Backend.STASH else 3)
    assert place.seen().stash.token == place.seen().persist.token == done.token
    assert len(pauses) == 1


def test_who_is_overtaken_for_ever_is_told(place: LinkedPlace) -> None:
    linked(place, Backend.STASH)
    pauses: list[float] = []
    stores = meddled(
        place, Backend.STASH, lambda _: bool(take_over_both(place.stores(), claim(holder="faster")))
    )
    with pytest.raises(Fenced, match="faster"):
        take_over_both(stores, claim(), sleep=pauses.append)
    assert 5 < len(pauses) < 50
    assert max(pauses) < 2


def test_two_catalogs_that_were_never_linked_are_a_conflict_until_the_truth_is_said(
    place: LinkedPlace,
) -> None:
    for backend in Backend:
        place.alone(backend).initialize(**WHO)
    before = place.uppers()
    with pytest.raises(LinkConflict, match="each hold a catalog") as caught:
        taken(place)
    assert "truth" in caught.value.hint
    assert place.uppers() == before
    assert taken(place, Terms(truth=Backend.STASH)).link.truth is Backend.STASH
    # From then on it is known.
    assert taken(place).link.truth is Backend.STASH


def broken_off(place: LinkedPlace, backend: Backend, appends: int) -> None:
    """Link, and end before so many appends to a store."""

    def end(number: int) -> None:
        if number == appends:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_over_both(meddled(place, backend, end), claim())


@pytest.mark.parametrize(("backend", "appends"), [(Backend.PERSIST, 1), (Backend.STASH, 1)])
def test_a_link_that_broke_off_early_is_decided_anew(
    place: LinkedPlace, backend: Backend, appends: int
) -> None:
    place.persist().initialize(**WHO)
    broken_off(place, backend, appends)
    number = place.configs()[Backend.PERSIST].get("link")
    assert (number is None) is (backend is Backend.PERSIST)
    assert "link" not in place.configs()[Backend.STASH]
    # It is not linked yet: somebody may fill the stash.
    place.stash().initialize(**WHO)
    with pytest.raises(LinkConflict):
        taken(place)
    done = taken(place, Terms(truth=Backend.STASH, strategy=TWO))
    assert done.link.truth is Backend.STASH
    # Another number: whoever began it, and is slow only, has linked with nothing.
    assert number != done.link.id
    assert place.configs()[Backend.PERSIST].get("tombstone") is None


def test_a_link_that_broke_off_late_is_finished(place: LinkedPlace) -> None:
    place.persist().initialize(**WHO)
    broken_off(place, Backend.PERSIST, 2)
    assert place.configs()[Backend.PERSIST]["stash_linked"] == 0
    found = place.stores().linkage(place.seen())
    assert isinstance(found, ToLink)
    assert found.finishing
    done = taken(place)
    assert done.link == Linked(found.finishing, ONE, Backend.PERSIST)
    assert place.configs()[Backend.PERSIST]["stash_linked"] == 1


@pytest.mark.parametrize(("backend", "appends"), [(Backend.STASH, 1), (Backend.PERSIST, 2)])
@pytest.mark.parametrize("truth", Backend)
def test_a_link_that_broke_off_is_not_gone_on_with_by_another_stash(
    place: LinkedPlace, tmp_path: Path, truth: Backend, backend: Backend, appends: int
) -> None:
    place.alone(truth).initialize(**WHO)
    broken_off(place, backend, appends)
    (tmp_path / "other").mkdir()
    other = LinkedPlace(tmp_path / "other")
    stores = TwoStores(other.stores().stash, place.stores().persist)
    before = place.uppers()
    with pytest.raises(LinkConflict, match="begun with another stash"):
        take_over_both(stores, claim())
    assert place.uppers() == before
    assert contents(other.stores().stash) == set()
    # Once somebody says so the first stash is out of it.
    done = take_over_both(replace(stores, terms=Terms(truth=Backend.STASH)), claim())
    assert done.link.truth is (Backend.PERSIST if truth is Backend.PERSIST else Backend.STASH)
    with pytest.raises(LinkConflict):
        taken(place)
    other.close()


@pytest.mark.parametrize("append", [1, 2])
def test_a_slow_link_with_a_stash_that_another_took_the_place_of_is_none(
    place: LinkedPlace, tmp_path: Path, append: int
) -> None:
    place.stash().initialize(**WHO)
    (tmp_path / "other").mkdir()
    other = LinkedPlace(tmp_path / "other")

    def link_other(number: int) -> None:
        # Before the stash is linked, or before persist is told so.
        if number == append:
            stores = TwoStores(other.stores().stash, place.stores().persist, Terms(truth=Backend.STASH))
            take_over_both(stores, claim(holder="another"))

    slow = meddled(place, Backend.STASH if append == 1 else Backend.PERSIST, link_other)
    with pytest.raises(LinkConflict):
        take_over_both(slow, claim(), sleep=lambda _: None)
    with pytest.raises(LinkConflict):
        taken(place)
    other.close()


def test_a_stash_from_before_the_last_fence_of_persist_is_a_conflict(
    place: LinkedPlace, tmp_path: Path
) -> None:
    linked(place, Backend.STASH)
    with (
        closing(sqlite3.connect(tmp_path / "stash.sqlite")) as source,
        closing(sqlite3.connect(tmp_path / "copy.sqlite")) as copy,
    ):
        source.backup(copy)
    taken(place)
    stores = TwoStores(StashStore(f"sqlite://{tmp_path}/copy.sqlite"), place.stores().persist)
    before = contents(stores.stash), contents(stores.persist)
    with pytest.raises(LinkConflict, match="restored from an older state"):
        take_over_both(stores, claim())
    assert (contents(stores.stash), contents(stores.persist)) == before


def test_stores_of_different_links_are_a_conflict(place: LinkedPlace, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = LinkedPlace(tmp_path / "other")
    place.persist().initialize(**WHO)
    for each in (place, other):
        linked(each, Backend.PERSIST)
    for stash, persist in ((place, other), (other, place)):
        with pytest.raises(LinkConflict, match="not linked with each other"):
            take_over_both(TwoStores(stash.stores().stash, persist.stores().persist), claim())
    other.close()


def test_an_empty_stash_is_never_taken_for_that_of_a_linked_catalog(
    place: LinkedPlace, tmp_path: Path
) -> None:
    place.persist().initialize(**WHO)
    linked(place, Backend.PERSIST)
    empty = StashStore(f"sqlite://{tmp_path}/empty.sqlite")
    stores = TwoStores(empty, place.stores().persist)
    before = place.uppers()
    with pytest.raises(LinkConflict, match="never linked") as caught:
        take_over_both(stores, claim())
    assert "--stash-lost' shows what would be lost" in caught.value.hint
    place.set_config(Backend.PERSIST, truth=1)
    with pytest.raises(LinkConflict, match="never linked") as caught:
        take_over_both(stores, claim())
    assert "detach --stash-lost'" in caught.value.hint
    assert "--accept-loss" not in caught.value.hint
    assert contents(empty) == set()
    assert place.uppers() == (before[0], before[1] + 1)


def test_a_linked_stash_is_never_linked_with_another_persist(place: LinkedPlace, tmp_path: Path) -> None:
    place.stash().initialize(**WHO)
    linked(place, Backend.STASH)
    (tmp_path / "other").mkdir()
    other = LinkedPlace(tmp_path / "other")
    with pytest.raises(LinkConflict, match=r"no link is recorded in .*: it was detached, or lost") as caught:
        take_over_both(TwoStores(place.stores().stash, other.stores().persist), claim())
    places = place.stores().stash.place, other.stores().persist.place
    assert all(each in str(caught.value) for each in places)
    assert "if persist was lost, restore it from a backup" in caught.value.hint
    assert other.uppers()[1] == 0
    other.close()


def test_the_strategy_belongs_to_the_link(place: LinkedPlace) -> None:
    linked(place, Backend.STASH, TWO)
    before = place.uppers()
    with pytest.raises(StrategyMismatch, match="TWO_TOMBSTONES"):
        taken(place, Terms(strategy=ONE))
    assert place.uppers() == before
    assert taken(place).link.strategy is TWO
    place.set_config(Backend.STASH, migration_strategy=9)
    with pytest.raises(CorruptBlob, match="migration_strategy"):
        taken(place)


def test_tombstones_that_no_migration_leads_to_are_a_conflict(place: LinkedPlace) -> None:
    linked(place, Backend.STASH, TWO)
    place.set_config(Backend.PERSIST, tombstone=1)
    with pytest.raises(LinkConflict, match="restored"):
        taken(place)


def test_a_note_that_the_tombstones_deny_is_a_conflict_whatever_is_said(place: LinkedPlace) -> None:
    linked(place, Backend.STASH)
    place.set_config(Backend.STASH, truth=1)
    place.set_config(Backend.PERSIST, truth=1)
    before = place.uppers()
    # The word of a new link stays in many a configuration: it must not hide that a store was restored.
    for truth in (None, *Backend):
        with pytest.raises(LinkConflict, match="restored from an older state") as caught:
            taken(place, Terms(truth=truth))
    assert "--accept-loss" in caught.value.hint
    assert place.uppers() == before


@pytest.mark.parametrize("truth", Backend)
@pytest.mark.parametrize("alone", Backend)
def test_a_linked_store_is_not_written_alone(place: LinkedPlace, truth: Backend, alone: Backend) -> None:
    place.alone(truth).initialize(**WHO)
    rows: list[Row] = list(contents(place.stores().of(truth)))
    linked(place, truth)
    before = place.uppers()
    openable = place.alone(alone)
    for write in (
        lambda: openable.open(OpenMode.WRITABLE, **WHO),
        lambda: openable.initialize(**WHO),
        lambda: openable.raise_fence(9, **WHO),
        lambda: openable.load(rows, **WHO),
        lambda: openable.load(rows, exact=True, **WHO),
    ):
        with pytest.raises(LinkedElsewhere, match="can't be written alone") as caught:
            write()
        assert "both of its stores" in caught.value.hint
    assert place.uppers() == before
    # What can be asked of a catalog that isn't open, is answered.
    assert openable.is_initialized() is (alone is truth)
    assert openable.config("link")
    assert openable.epoch()


@pytest.mark.parametrize("mode", [OpenMode.READ_ONLY, OpenMode.SAVEPOINT])
def test_a_linked_store_is_read_alone_while_it_says_that_it_is_the_truth(
    place: LinkedPlace, mode: OpenMode
) -> None:
    place.stash().initialize(**WHO)
    linked(place, Backend.STASH)
    with pytest.raises(LinkedElsewhere, match="can't be read alone"):
        place.stash().open(mode)
    place.set_config(Backend.STASH, truth=1)
    place.stash().open(mode).close()


def test_a_load_leaves_alone_what_the_store_itself_is(place: LinkedPlace, tmp_path: Path) -> None:
    place.stash().initialize(**WHO)
    linked(place, Backend.STASH)
    dumped = contents(place.stores().stash)
    (tmp_path / "other").mkdir()
    other = LinkedPlace(tmp_path / "other")
    for exact in (False, True):
        other.stash().load(dumped, exact=exact, **WHO)
        assert set(other.configs()[Backend.STASH]) == {"user_version"}
    other.set_config(Backend.STASH, tombstone=1, mine=3)
    other.stash().load(dumped, exact=True, **WHO)
    assert other.configs()[Backend.STASH] == {"user_version": 19, "tombstone": 1}
    other.close()
