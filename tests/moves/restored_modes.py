"""Writers of both stores, and writers in an emergency, in the matrix of restored stores.

The story itself has both kinds of writers, so that their commits are moments and copies too. Each pair is
opened to write both stores, or in an emergency and then with both stores. The stash alone can't show that it
is the wrong one. So the contents that an emergency finds are not checked, but those that others find later
are.
"""

from collections.abc import Iterator

from holdfast.catalog import OpenMode
from holdfast.catalog.move.emergency import emergency_catalog
from holdfast.catalog.move.truth import Backend
from holdfast.errors import HoldfastError, MigrationInProgress, NeedsPersist, Uninitialized
from moves.actors import TIMEOUT_S, Book, add, free, names
from moves.restored import Found, Held, Moment, Story, Told, pairs, stories, tried
from moves.world import Disks, World

SAMPLE = 47
"""One of so many pairs is tried, unless all are asked for."""


def pairwise(writers: str) -> Iterator[Story]:
    """The half of the stories in which any two of strategy, target and verification still meet."""
    for story in stories(writers):
        numbers = (list(type(each)).index(each) for each in (story.strategy, story.target, story.verify))
        if sum(numbers) % 2 == 0:
            yield story


def visited(story: Story, found: Found, *, every: int = SAMPLE) -> None:
    """Try all moments of a story, and one of `every` pairs."""
    moments = Told(story).moments
    # The moments of plain writers are in the matrix itself.
    for number, moment in enumerate(moments if story.writers != "plain" else ()):
        where = f"{story}: moment {number} ({moment.call})"
        for way, held in _tried(story, moment.disks, moment):
            found.count_moment(held, moment.roles, where=f"{where}, {way}")
    for number, pair in enumerate(pairs(moments)):
        if number % every == 0:
            for way, held in _tried(story, pair.disks, pair.now):
                where = f"{story}: {pair}, {way}"
                found.count(held, pair.now.roles, silent=pair.is_silent, where=where)


def _tried(story: Story, disks: Disks, moment: Moment) -> Iterator[tuple[str, Held]]:
    yield "open", tried(story, disks, None, "open")
    yield "resume", tried(story, disks, moment.moving, "resume")
    yield "shadow", _shadowed(story, disks)
    yield from _in_emergency(story, disks)


def _world(story: Story, disks: Disks) -> World:
    world = World(strategy=story.strategy, is_watched=False)
    world.stash.stored, world.persist.stored = disks.stash, disks.persist
    world.now_ms += int(2 * TIMEOUT_S * 1000)
    return world


def _shadowed(story: Story, disks: Disks) -> Held:
    """What a writer of both stores holds, who adds to it; others find that in either way."""
    world = _world(story, disks)
    try:
        catalog = world.process().linked(shadow=True).open(OpenMode.WRITABLE, holder="a", purpose="both")
        found = frozenset(names(catalog))
        written = Book(acked=set(found))
        assert add(catalog, written, free(written)), written.told
        with world.process().linked().open(OpenMode.READ_ONLY) as reader:
            assert names(reader) == written.acked
    except HoldfastError as error:
        return error
    return found


def _in_emergency(story: Story, disks: Disks) -> Iterator[tuple[str, Held]]:
    """What others find after one emergency or three, of which the last one adds a role."""
    for times in (1, 3):
        world = _world(story, disks)
        try:
            for _ in range(times):
                alone = emergency_catalog(world.process().alone(Backend.STASH))
                catalog = alone.open(OpenMode.WRITABLE, holder="a", purpose="an emergency")
            book = Book(acked=names(catalog))
            assert add(catalog, book, free(book)), book.told
        except (NeedsPersist, Uninitialized, MigrationInProgress):
            return
        yield f"after {times} emergencies", tried(story, world.disks, None, "open")
