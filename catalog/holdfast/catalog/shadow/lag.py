"""Whether a secondary that a reader finds different only lags.

A writer commits on the primary, then on the secondary, one commit at a time; a writer whose secondary failed
leaves it as it is until it makes it anew. So a secondary that lags lacks the last commits of the primary,
each of them whole, and nothing else differs. Any other difference is one.

What a reader can't tell: a secondary that lacks more commits than the primary's readable past has could have
diverged too. It counts as out of date, until it moves: then it has what the primary had shortly before.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from contextlib import closing
from itertools import groupby
from operator import attrgetter

from holdfast.catalog.interfaces import ObjectChange, ReadOnlyCatalog
from holdfast.catalog.objects.registry import Kind
from holdfast.catalog.shadow.side import canonical
from holdfast.catalog.stores.store import RETAIN_VERSIONS
from holdfast.errors import HoldfastError

Kinds = frozenset[Kind]

Difference = Mapping[tuple[Kind, Hashable], int]
"""How many more of each object the primary has than the secondary; never 0."""


class Lag:
    """How far the secondary of a reader lags, as far as it was looked at. Not thread-safe."""

    def __init__(self) -> None:
        self.why: str | None = None
        # Where the secondary was when it was found to differ: as long as it is there it holds the same.
        self._judged: tuple[int, frozenset[Kind]] | None = None
        self._seen: tuple[int, int] | None = None
        # It is not older than the primary before this time.
        self._floor = 0

    def saw(self, secondary: int, primary: int) -> None:
        """Note the upper of the secondary, read when that of the primary was at least `primary`."""
        if self._seen is not None and self._seen[0] != secondary:
            # It took a commit after it was seen last: that of the primary is at most one older.
            self._floor = max(self._floor, self._seen[1] - 1)
        self._seen = secondary, primary

    def is_known(self, secondary: int, kinds: Kinds) -> bool:
        """Whether the secondary is where it was when it was found to lag in these kinds."""
        return self._judged is not None and self._judged[0] == secondary and kinds <= self._judged[1]

    def in_step(self) -> None:
        """Note that both were found to be the same."""
        self.why = self._judged = None

    def explains(
        self, difference: Difference, primary: ReadOnlyCatalog, secondary: int, kinds: Kinds
    ) -> bool:
        """Whether the difference in some kinds is, or may be, that the secondary lags behind the primary.

        `primary` must have been read after the secondary.
        """
        upper = primary.upper
        try:
            since = primary.since
            lower = max(since + 1 if since else 0, upper - RETAIN_VERSIONS)
            missing = _missing_from(difference, _changes(primary, lower, upper, kinds))
        except HoldfastError as error:
            self._judged, self.why = None, f"it differs, and the primary's past can't be read: {error}"
            return True
        if missing is None and lower <= self._floor:
            return False
        self._judged = secondary, kinds
        if missing is None:
            self.why = f"it lacks commits of before {lower}, or has diverged: its writer can tell"
        else:
            self.why = f"it lacks what was committed from {missing} on"
        return True


def _missing_from(difference: Difference, changes: list[ObjectChange]) -> int | None:
    """The time from which on all changes together are the difference; None where there is none."""
    left = dict(difference)
    time: int
    for time, group in groupby(reversed(changes), attrgetter("time")):
        for change in group:
            form = change.collection.kind, canonical(change.object)
            left[form] = left.get(form, 0) - change.diff
            if not left[form]:
                del left[form]
        if not left:
            return time
    return None


def _changes(catalog: ReadOnlyCatalog, lower: int, upper: int, kinds: Kinds) -> list[ObjectChange]:
    found: list[ObjectChange] = []
    with closing(catalog.subscribe(lower)) as subscription:
        # They are all committed: nothing is waited for.
        while subscription.frontier < upper:
            changes = subscription.next(timeout=0.0)
            found += (change for change in changes if change.collection.kind in kinds and change.time < upper)
    return found


def difference_of(kind: Kind, primary: list[object], secondary: list[object]) -> Difference:
    """What differs in the objects of a kind."""
    found = Counter(map(canonical, primary))
    found.subtract(map(canonical, secondary))
    return {(kind, form): count for form, count in found.items() if count}
