"""Which bound files are no longer listed, and since when. After a while they are forgotten.

A forgotten file has no binding. All that are forgotten are one row of the remap, which counts them and their
messages. So the remap does not grow for ever. The times at which files were first missing are in the remap
too, so they survive a restart.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.collections.pipeline import FORGOTTEN, UNLISTED
from holdfast.ingest.following import NOTHING, forgotten
from holdfast.ingest.source import Binding

_MOST: Final = 10_000
"""So many files are forgotten in one step."""


@dataclass(frozen=True, slots=True)
class FilesChange:
    """What a commit changes: files that are missing since now or listed again, and what is forgotten.

    `ended` has all files that are no longer missing, also because they are forgotten, and since when they
    were. `forgotten` is the row of all that are forgotten after the commit.
    """

    begun: Mapping[str, Binding] = field(default_factory=dict)
    ended: Mapping[str, Binding] = field(default_factory=dict)
    forgets: Collection[str] = ()
    forgotten: Binding = NOTHING


class Unlisted:
    """What is missing and what is forgotten, as the remap has it. `after_ms` is 0 if nothing is forgotten.

    If files are `lexical`, they are missing as soon as a later one is bound.
    """

    def __init__(self, after_ms: int, *, lexical: bool) -> None:
        self._after_ms = after_ms
        self._lexical = lexical
        self._since: dict[str, int] = {}
        self._listed: set[str] = set()
        self.forgotten = NOTHING

    def load(self, rows: Iterable[Mapping[str, Any]], bound: Collection[str]) -> None:
        """Begin with the rows of a remap."""
        rows = [each for each in rows if each["source"] in (UNLISTED, FORGOTTEN)]
        missing = sorted((each["position"], each["partition"]) for each in rows if each["source"] == UNLISTED)
        self._since = {name: since for since, name in missing}
        self._listed = set(bound) - self._since.keys()
        self.forgotten = forgotten(rows)

    def has_back(self, listed: Collection[str]) -> bool:
        """Whether a file is listed that was missing."""
        return bool(self._after_ms) and not self._since.keys().isdisjoint(listed)

    def change(self, listed: Collection[str], bound: Mapping[str, Binding], now_ms: int) -> FilesChange:
        """Return what a listing changes. `listed` are the bound files that it has."""
        if not self._after_ms:
            return FilesChange(forgotten=self.forgotten)
        back = [each for each in listed if each in self._since]
        begun = {each: Binding(now_ms) for each in self._listed.difference(listed)}
        # The oldest ones come first.
        due = itertools.takewhile(
            lambda name: self._since[name] + self._after_ms <= now_ms,
            (each for each in self._since if each not in listed),
        )
        forgets = list(itertools.islice(due, _MOST))
        ended = {each: Binding(self._since[each]) for each in (*back, *forgets)}
        after = collapsed(self.forgotten, (bound[each] for each in forgets))
        if self._lexical and forgets:
            after = replace(after, identity=max(after.identity, *forgets))
        return FilesChange(begun, ended, forgets, after)

    def following(self, forgets: Collection[str], after: Binding) -> FilesChange:
        """The change of a rendition that follows another one: it forgets what that one has forgotten."""
        ended = {each: Binding(self._since[each]) for each in forgets if each in self._since}
        return FilesChange({}, ended, forgets, after)

    def apply(self, change: FilesChange, bound: Iterable[str]) -> None:
        """Take over a change that was committed, and that these files are bound now."""
        for each in change.ended:
            del self._since[each]
        self._listed |= change.ended.keys()
        self._since |= {name: each.position for name, each in change.begun.items()}
        self._listed.update(bound)
        self._listed.difference_update(change.begun, change.forgets)
        self.forgotten = change.forgotten


def collapsed(before: Binding, files: Iterable[Binding]) -> Binding:
    """What is forgotten, with these files."""
    for each in files:
        before = replace(
            before,
            position=before.position + 1,
            checksum=(before.checksum + each.checksum) % 2**64,
            total=before.total + each.total,
        )
    return before
