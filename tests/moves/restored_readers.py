"""A store returns to an older state while readers and subscribers have it open.

At the restore or before it, a reader is in sync and a subscriber has received all changes. Then the copy
replaces the store, the clock advances, and both read again. Each must get what was committed, or an error. A
subscriber that receives no more changes and no error has ended silently, which is wrong.
"""

from collections.abc import Iterable, Iterator, Sequence

from holdfast.catalog import OpenMode, ReadOnlyCatalog
from holdfast.catalog.interfaces import ObjectChange, Subscription
from holdfast.catalog.move.other_store import RECENT_S
from holdfast.catalog.objects.registry import ROLES
from holdfast.errors import HoldfastError, Uninitialized
from moves.actors import names
from moves.restored import Found, Held, Moment, Pair, Story, Told, pairs
from moves.world import Disks, World

SAMPLE = 23
"""One of so many pairs is tried, unless all are asked for."""


class Following:
    """A reader and a subscriber of one process that were open at a moment."""

    def __init__(self, story: Story, moment: Moment) -> None:
        self._world = World(strategy=story.strategy, is_watched=False)
        self._put(moment.disks)
        self._process = self._world.process()
        self.reader: ReadOnlyCatalog = self._process.linked().open(OpenMode.READ_ONLY)
        self.subscription: Subscription = self.reader.subscribe()
        self._roles = names(self.reader)

    def restored(self, disks: Disks) -> tuple[Held, Held]:
        """What the reader and the subscriber have after the stores became these."""
        self._put(disks)
        self._world.now_ms += int(RECENT_S * 1000) + 1
        return self._read(), self._subscribed()

    def _put(self, disks: Disks) -> None:
        self._world.stash.stored, self._world.persist.stored = disks.stash, disks.persist

    def _read(self) -> Held:
        try:
            self.reader.sync()
            return frozenset(names(self.reader))
        except HoldfastError as error:
            return error

    def _subscribed(self) -> Held:
        roles = set(self._roles)
        try:
            # Changes first, then a call that finds none.
            while changes := self.subscription.next(0):
                _apply(roles, changes)
        except HoldfastError as error:
            return error
        return frozenset(roles)


def _apply(roles: set[str], changes: Iterable[ObjectChange]) -> None:
    for change in changes:
        if change.collection is ROLES and len(change.object.value.name) == 1:
            (roles.add if change.diff == 1 else roles.discard)(change.object.value.name)


def followed(story: Story, found: Found, *, every: int = SAMPLE) -> None:
    """Readers and subscribers of all moments, and of one of `every` pairs."""
    moments = Told(story).moments
    open_at = [number for number, moment in enumerate(moments) if _can_be_read(story, moment)]
    known = {moment.roles for moment in moments}
    for opened in open_at:
        for now in sorted({opened, min(opened + 1, len(moments) - 1), len(moments) - 1}):
            where = f"{story}: open at {opened}, moment {now} ({moments[now].call})"
            for who, held in _asked(story, moments[opened], moments[now].disks):
                _count_moment(found, held, moments, opened, now, where=f"{where}, {who}")
    for number, pair in enumerate(pairs(moments)):
        if number % every:
            continue
        for opened in _opened(pair, open_at):
            where = f"{story}: open at {opened}, {pair}"
            for who, held in _asked(story, moments[opened], pair.disks):
                if not isinstance(held, HoldfastError):
                    assert held in known, f"{where}, {who}: a mix: {sorted(held)}"
                found.count(held, pair.now.roles, silent=pair.is_silent, where=f"{where}, {who}")


def _asked(story: Story, opened: Moment, disks: Disks) -> Iterator[tuple[str, Held]]:
    yield from zip(("reader", "subscriber"), Following(story, opened).restored(disks), strict=True)


def _can_be_read(story: Story, moment: Moment) -> bool:
    try:
        Following(story, moment)
    except Uninitialized:
        return False
    return True


def _opened(pair: Pair, open_at: Sequence[int]) -> list[int]:
    """Before the copy, at the copy, between the copy and the restore, at the restore."""
    now, then = pair.at
    wanted = {then - 3, then, (then + now) // 2, now}
    return sorted(wanted & {*open_at})


def _count_moment(
    found: Found, held: Held, moments: Sequence[Moment], opened: int, now: int, *, where: str
) -> None:
    """Nothing was restored: an error only where the catalog was moved away since."""
    found.counts["moments"] += 1
    truths = {each.disks.truth for each in moments[opened : now + 1]}
    if isinstance(held, HoldfastError):
        if len(truths) == 1:
            found.refused.append(f"{where}: {held!r}")
    elif not moments[now].roles <= held:
        found.counts["wrong"] += 1
        found.wrong.append(f"{where}: {sorted(moments[now].roles - held)} is lost")
