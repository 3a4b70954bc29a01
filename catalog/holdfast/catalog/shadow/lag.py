"""Whether a secondary that differs from the primary, as a reader sees it, only lags.

A writer commits on the primary and then on the secondary, one commit at a time. If its secondary fails, the
writer leaves it as it is until a resync. So a secondary that lags lacks the last commits of the primary, each
of them completely, and nothing else differs. Any other difference is a real one.

A reader can't decide one case: a secondary that lacks more commits than the readable past of the primary may
also have diverged. It counts as out of date until it moves. Then it has what the primary had shortly before.
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
"""For each object, how many more the primary has than the secondary. Never 0."""


class Lag:
    """How far the secondary of a reader lags, as far as is known. Not thread-safe."""

    def __init__(self) -> None:
        self.why: str | None = None
        # The upper of the secondary when it was found to differ. At this upper it has the same contents.
        self._judged: tuple[int, frozenset[Kind]] | None = None
        self._seen: tuple[int, int] | None = None
        # The secondary has all commits of the primary before this time.
        self._floor = 0

    def saw(self, secondary: int, primary: int) -> None:
        """Record the upper of the secondary, read when the primary's upper was at least `primary`."""
        if self._seen is not None and self._seen[0] != secondary:
            # It has made a commit since. The primary's copy of that commit is at most one older.
            self._floor = max(self._floor, self._seen[1] - 1)
        self._seen = secondary, primary

    def is_known(self, secondary: int, kinds: Kinds) -> bool:
        """Whether the secondary is still where it was when it was found to lag in these kinds."""
        return self._judged is not None and self._judged[0] == secondary and kinds <= self._judged[1]

    def in_step(self) -> None:
        """Record that both are equal."""
        self.why = self._judged = None

    def explains(
        self, difference: Difference, primary: ReadOnlyCatalog, secondary: int, kinds: Kinds
    ) -> bool:
        """Whether the difference in some kinds is, or may be, that the secondary lags behind the primary.

        `primary` must be read after the secondary.
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
            self.why = f"it lacks commits from before {lower}, or has diverged: only its writer can tell"
        else:
            self.why = f"it lacks the commits from {missing} on"
        return True


def _missing_from(difference: Difference, changes: list[ObjectChange]) -> int | None:
    """The latest time such that all changes from it together are the difference. None if there is none."""
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
        # They are all committed, so there is nothing to wait for.
        while subscription.frontier < upper:
            changes = subscription.next(timeout=0.0)
            found += (change for change in changes if change.collection.kind in kinds and change.time < upper)
    return found


def difference_of(kind: Kind, primary: list[object], secondary: list[object]) -> Difference:
    """The difference in the objects of a kind."""
    found = Counter(map(canonical, primary))
    found.subtract(map(canonical, secondary))
    return {(kind, form): count for form, count in found.items() if count}
