"""Tests in which a store returns to an older state while a process has the catalog open, or moves it."""

import copy
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from holdfast.catalog.cache import Cache
from holdfast.catalog.handle import WritableHandle
from holdfast.catalog.move.migration import BackendMigration, Verify
from holdfast.catalog.move.other_store import RECENT_S, OtherStore
from holdfast.catalog.move.standing import OneOfTwo
from holdfast.catalog.move.truth import STEPS, Backend
from holdfast.errors import HoldfastError
from moves.actors import Book, add, free, migration, names, write
from moves.memorystore import MemoryStore
from moves.restored import Found, Moment, Story, Told, moments_of, pairs, shows_nothing, tried
from moves.world import World, fence_of


def moved_live(story: Story, found: Found) -> None:
    """Move a catalog; after each step one of the stores returns to each older state, and the move goes on."""
    steps = STEPS[story.strategy, story.target]
    begun = World(strategy=story.strategy)
    before: list[Moment] = []
    book = Book()
    process = begun.process(moments_of(begun, before))
    assert write(process, book, "a", backend=story.target.other)
    assert add(book.handles[-1], book, "b")
    for after, restored in product(range(1, len(steps)), Backend):
        number = 0
        while True:
            world = begun.copy()
            moments = list(before)
            moving = migration(world.process(moments_of(world, moments)), story.target, verify=story.verify)
            _advance(moving, after, last=after == len(steps) - 1)
            copies = _copies(moments, restored)
            if number >= len(copies):
                break
            _go_on(story, world, moving, moments, copies[number], restored, found)
            number += 1


def _advance(moving: BackendMigration, steps: int, *, last: bool) -> None:
    for _ in range(steps):
        assert moving.advance() is not None
    if last and moving.verify is Verify.SHADOW and moving.next_step is not None:
        catalog = moving.open_shadow()
        book = Book(acked=set("ab"))
        for _ in range(2):
            assert add(catalog, book, free(book))


def _copies(moments: Sequence[Moment], restored: Backend) -> list[int]:
    """The moments that have other states of a store than the last one has, each state once."""
    seen = {id(moments[-1].disks.of(restored))}
    found = []
    for number in range(len(moments) - 2, -1, -1):
        state = id(moments[number].disks.of(restored))
        if state not in seen:
            seen.add(state)
            found.append(number)
    return found


def _go_on(
    story: Story,
    world: World,
    moving: BackendMigration,
    moments: list[Moment],
    number: int,
    restored: Backend,
    found: Found,
) -> None:
    now, then = moments[-1], moments[number]
    silent = shows_nothing(moments, number, len(moments) - 1, restored)
    world.is_watched = False
    (world.stash if restored is Backend.STASH else world.persist).stored = then.disks.of(restored)
    try:
        while moving.advance() is not None:
            pass
        told = "ended"
    except HoldfastError as error:
        told = f"{type(error).__name__}: {error}"
    moving.close()
    held = tried(story, world.disks, None, "open")
    where = f"{story}, {restored.value} of moment {number} under {len(moments) - 1} ({now.call}): {told}"
    found.count(held, now.roles, silent=silent, where=where)


def written_live(story: Story, found: Found) -> None:
    """Whoever has the catalog open writes after a store has returned to an older state."""
    told = Told(story)
    for number, moment in enumerate(told.moments):
        writer = [each for each in told.handles if each[0] <= number][-1:]
        for _, handle in writer:
            if _is_writer(handle, moment):
                held = _written(story, moment, moment, None, handle)
                found.count_moment(held, moment.roles, where=f"{story}: moment {number}")
    for pair in pairs(told.moments):
        for opened, handle in told.handles:
            backend = handle._standing.backend
            if opened <= pair.at[0] and _token_is_in(handle, pair.disks.of(backend)):
                held = _written(story, pair.now, pair.then, pair.restored, handle)
                found.count(held, pair.now.roles, silent=pair.is_silent, where=f"{story}: {pair}")


def _is_writer(handle: WritableHandle, moment: Moment) -> bool:
    return all(_token_is_in(handle, moment.disks.of(backend)) for backend in Backend)


def _token_is_in(handle: WritableHandle, stored: object) -> bool:
    return fence_of(stored) == handle._cache.fence_row


def _written(
    story: Story, now: Moment, then: Moment, restored: Backend | None, handle: WritableHandle
) -> frozenset[str] | HoldfastError:
    """What a copy of a handle holds after a commit on these stores; or the error."""
    world = World(strategy=story.strategy, is_watched=False)
    for backend, disk in ((Backend.STASH, world.stash), (Backend.PERSIST, world.persist)):
        disk.stored = (then if backend is restored else now).disks.of(backend)
    writer = _copy_of(handle, world)
    try:
        writer.set_setting("a", "b")
        return frozenset(names(writer))
    except HoldfastError as error:
        return error


def _copy_of(handle: WritableHandle, world: World) -> WritableHandle:
    """The same process, which had the catalog open, on the stores of another world, some seconds later."""
    standing = handle._standing
    assert isinstance(standing, OneOfTwo)
    assert standing.other is not None
    disks = {Backend.STASH: world.stash, Backend.PERSIST: world.persist}
    stores = {
        backend: MemoryStore(disk, checks_history=backend is Backend.STASH) for backend, disk in disks.items()
    }
    known = standing.other
    other = OtherStore(stores[standing.backend.other], known._seen, known._token, lambda: 0.0)
    other._clock = lambda: RECENT_S + 1
    same = copy.copy(handle)
    same._lock = threading.RLock()
    same._cache = Cache(handle._cache.rows())
    same._store = stores[standing.backend]
    same._standing = replace(standing, stores=world.process().linked().stores, other=other)
    return same
