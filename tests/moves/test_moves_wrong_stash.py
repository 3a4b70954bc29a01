"""A linked catalog on persist cannot be linked with another stash, and never with an empty one."""

import pytest

from holdfast.catalog import OpenMode
from holdfast.catalog.move.truth import Backend, Strategy
from holdfast.errors import LinkConflict
from moves.actors import write
from moves.acts import Act, begun
from moves.memorystore import Disk
from moves.two_stashes import link_with_two


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("truth", Backend)
@pytest.mark.parametrize("stash", ["empty", "another"])
def test_another_stash_is_not_linked(strategy: Strategy, truth: Backend, stash: str) -> None:
    world, book = begun("migrate", strategy, truth.other, "linked")
    other, _ = begun("migrate", strategy, truth.other, "linked")
    if stash == "another":
        # With its own link, made under another number.
        other, _ = begun("migrate", Strategy(3 - strategy.value), truth.other, "linked")
    world.is_watched = False
    world.stash = Disk("the stash") if stash == "empty" else other.stash
    world.strategy = None
    before = world.disks
    linked = world.process().linked()
    with pytest.raises(LinkConflict):
        write(world.process(), book, "x")
    with pytest.raises(LinkConflict):
        linked.open(OpenMode.READ_ONLY)
    with pytest.raises(LinkConflict):
        linked.source_of_truth()
    assert world.disks == before


@pytest.mark.parametrize(
    ("strategy", "said"),
    [(Strategy.TWO_TOMBSTONES, None), *((Strategy.ONE_TOMBSTONE, said) for said in (None, *Backend))],
)
@pytest.mark.parametrize("target", Backend)
def test_a_link_that_breaks_off_is_never_one_of_two_stashes(
    strategy: Strategy, target: Backend, said: Backend | None
) -> None:
    stories = link_with_two(Act("open", strategy, target, "unlinked"), said=said)
    assert stories >= 4 * len(("fence", "fence", "mark", "link", "end of the link", "write"))
