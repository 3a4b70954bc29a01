"""An interrupted link, and another process that uses another, empty stash in place of the first one.

Both stashes have the same persist. There must never be two processes that can write, nor two stashes with the
number of one link.
"""

from dataclasses import replace

from holdfast.catalog.move.truth import Backend
from holdfast.errors import HoldfastError, Indeterminate, LinkConflict
from moves.actors import Book, add, free, write
from moves.acts import Act
from moves.crashes import HOWS, Breaker, recorded
from moves.memorystore import Disk
from moves.watched import Call, Killed
from moves.world import World, config_of


def link_with_two(act: Act, *, said: Backend | None) -> int:
    """Break the first open of a link off everywhere, let another stash be tried, then the first one again.

    `said` is what who has the other stash says of the truth. Gives how many stories that were.
    """
    operations = recorded(act)
    for number, call in enumerate(operations):
        for how in HOWS:
            try:
                _story(act, number, call, how, said)
            except (AssertionError, HoldfastError) as error:
                told = f"{act}: {how} {number} ({call}), then another stash with truth {said}"
                raise AssertionError(f"{told}: {type(error).__name__}: {error}") from error
    return len(operations) * len(HOWS)


def _story(act: Act, number: int, call: Call, how: str, said: Backend | None) -> None:
    first, book = act.begun()
    # What the witness knows of one catalog does not hold for two.
    first.is_watched = False
    breaker = Breaker(number, how)
    try:
        act.do(first.process(breaker), book)
    except (Killed, Indeterminate):
        book.handles.clear()
    except AssertionError as error:
        if "in doubt" not in str(error):
            raise
    assert breaker.broke == call
    # The same persist, and another stash.
    other = replace(first, stash=Disk("another stash"))
    theirs = Book()
    theirs.doubtful = book.acked | book.doubtful
    was_linked = "link" in config_of(first.persist.stored)
    taken = _tries(other, theirs, said)
    _tries(first, book, None)
    writers = 0
    for handle, its in [
        *((each, book) for each in book.handles),
        *((each, theirs) for each in theirs.handles),
    ]:
        writers += add(handle, its, free(its))
    assert writers == 1, f"{writers} may write: {book.told}, {theirs.told}"
    numbers = [config_of(each.stash.stored).get("link") for each in (first, other)]
    assert None in numbers or numbers[0] != numbers[1], "two stashes have the number of one link"
    if was_linked and said is None:
        assert not taken, "another stash than the one it was begun with went on with a link"
        assert config_of(other.stash.stored) == {}, "who was refused has changed something"


def _tries(world: World, book: Book, said: Backend | None) -> bool:
    try:
        return write(world.process(), book, free(book), truth=said)
    except LinkConflict as error:
        book.told.append(f"{world.stash.name} refused: {error}")
        return False
