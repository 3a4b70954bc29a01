"""The source of a migration goes back in time and reaches the same upper again. No truth moves."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import Kind, OpenMode, linked_catalog
from holdfast.catalog.move.migration import BackendMigration, Verify
from holdfast.catalog.move.truth import STEPS, Backend, Strategy
from holdfast.catalog.objects.codec import RowUpdate, encode
from holdfast.catalog.objects.registry import ROLES
from holdfast.catalog.stores.stash import StashStore
from holdfast.errors import CatalogOutOfSync, ContentsDiffer, HoldfastError
from moves.actors import NUMBERS, Book, add, migration, write
from moves.memorystore import Disk, MemoryStore, Stored
from moves.world import World
from testbed.linkedstores import WHO, LinkedPlace


def done_after(action: str, strategy: Strategy, target: Backend) -> int:
    """How many steps are done after that one."""
    return [step.action.name for step in STEPS[strategy, target]].index(action) + 1


def cases() -> Iterator[tuple[Strategy, Backend, Verify, int]]:
    """With the steps that are done when the source returns: those up to the read, or up to the copy."""
    for strategy, target, verify in product(Strategy, Backend, Verify):
        yield strategy, target, verify, done_after("READ", strategy, target)
        copied = done_after("REPLACE", strategy, target)
        # Without verification the copy may be the commit that moves the truth.
        if verify is not Verify.NONE or STEPS[strategy, target][copied].store is not target:
            yield strategy, target, verify, copied


def changed(update: RowUpdate) -> RowUpdate:
    """The same update, where it adds role `b` with another value."""
    key = pb.RoleKey(id=pb.RoleId(user=NUMBERS["b"]))
    if update.row == encode(ROLES, key, pb.RoleValue(name="b")):
        return RowUpdate(encode(ROLES, key, pb.RoleValue(name="z")), update.diff)
    return update


def rewritten(stored: Stored) -> Stored:
    """Another history of the same store, with the same uppers, tokens and config, and with another role."""
    commits = stored.since(0)
    first = next(
        number
        for number, each in enumerate(commits)
        if any(changed(update) != update for update in each.updates)
    )
    before = commits[first].before
    assert before is not None
    disk = Disk("restored", before)
    for each in commits[first:]:
        MemoryStore(disk, checks_history=False)._commit(
            tuple(map(changed, each.updates)), each.time, each.upper, None
        )
    assert disk.stored.upper == stored.upper
    return disk.stored


def ends(moving: BackendMigration) -> HoldfastError | None:
    try:
        moving.run()
    except HoldfastError as error:
        return error
    return None


@pytest.mark.parametrize(("strategy", "target", "verify", "done"), list(cases()))
def test_the_truth_stays_where_it_is(strategy: Strategy, target: Backend, verify: Verify, done: int) -> None:
    world, book = World(strategy=strategy), Book()
    assert write(world.process(), book, "a", backend=target.other)
    assert add(book.handles[-1], book, "b")
    with migration(world.process(), target, verify=verify) as moving:
        for _ in range(done):
            assert moving.advance() is not None
        source = world.stash if target is Backend.PERSIST else world.persist
        world.is_watched = False
        source.stored = rewritten(source.stored)
        found = ends(moving)
    assert isinstance(found, CatalogOutOfSync | ContentsDiffer), found
    assert world.disks.truth is target.other


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LinkedPlace]:
    made = LinkedPlace(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("verify", [Verify.NONE, Verify.COMPARE])
def test_a_restored_stash_that_went_on_keeps_the_truth(
    place: LinkedPlace, tmp_path: Path, verify: Verify
) -> None:
    catalog = linked_catalog(place.stash(), place.persist(), backend=Backend.STASH)
    with catalog.open(OpenMode.WRITABLE, **WHO) as writer:
        place.back_up_stash()
        lower = writer.upper
        book = Book()
        assert add(writer, book, "b")
    stash = StashStore(f"sqlite://{tmp_path}/stash.sqlite")
    with BackendMigration(
        catalog, migration_id="m", target=Backend.PERSIST, verify=verify, holder="me"
    ) as moving:
        while moving.next_step is None or moving.next_step.action.name != "REPLACE":
            assert moving.advance() is not None
        commits = stash.changes(lower, stash.upper())
        upper = stash.upper()
        stash.close()
        place.restore_stash()
        for time, updates in commits:
            stash.append(map(changed, updates), time)
        assert stash.upper() == upper
        with pytest.raises(CatalogOutOfSync, match="restored from an older state"):
            moving.run()
    assert catalog.source_of_truth() is Backend.STASH
    assert [row for row in stash.rows(upper - 1, (Kind.ROLE,)) if b"z" in row.value]
    stash.close()
