"""The side of a shadow that is compared: what it has, and what became of it.

Invariants
- It decides nothing: whatever happens here, the primary's answer stands (with `strict`, for tests, a
  difference is raised instead).
- A store that fails leaves it out of date; a store that answers something else has diverged. Either way it
  is left alone from then on, until it is rebuilt.
"""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import config
from holdfast.catalog.interfaces import Catalog, ReadOnlyCatalog
from holdfast.catalog.objects.codec import Object, Row, encode
from holdfast.catalog.objects.registry import COLLECTIONS, FENCE_TOKENS, Collection
from holdfast.errors import (
    AsOfTooEarly,
    CorruptBlob,
    Fenced,
    FenceRegressed,
    HandleExpired,
    HoldfastError,
    ShadowDiverged,
    StorageError,
    UpgradeNeeded,
    VersionTooNew,
)

H = TypeVar("H", bound=ReadOnlyCatalog)
T = TypeVar("T")

OnDiverged = Callable[[ShadowDiverged], None]

_log = logging.getLogger(__name__)

COMPARED: tuple[Collection[Any, Any], ...] = tuple(
    row for row in COLLECTIONS.values() if row is not FENCE_TOKENS
)
"""What both sides have in common: each has a fence of its own."""


def compared_rows(catalog: ReadOnlyCatalog) -> Iterator[Row]:
    """What one side has of it, as it is written to the other."""
    return (
        encode(collection, found.key, found.value)
        for collection in COMPARED
        for found in catalog.stream(collection)
    )


_SHOWN = 3


class ShadowSide(Generic[H]):
    """The secondary of an open shadow; `handle` is None while it is out of date or has diverged."""

    def __init__(self, place: str, *, strict: bool, on_diverged: OnDiverged | None) -> None:
        self.place = place
        self.strict = strict
        self.handle: H | None = None
        self.diverged: ShadowDiverged | None = None
        self.out_of_date: str | None = None
        self.past_gone: str | None = None
        """Why a reader's secondary is not compared until the next sync."""
        self._on_diverged = on_diverged

    def attach(self, handle: H) -> None:
        """Take a handle whose contents are those of the primary."""
        self.handle, self.diverged, self.out_of_date, self.past_gone = handle, None, None, None

    def attempt(self, what: str, call: Callable[[H], T]) -> list[T]:
        """What the call on the secondary gave; empty when there is none or it failed."""
        if self.handle is None:
            return []
        try:
            return [call(self.handle)]
        except HoldfastError as error:
            self.failed(what, error)
            return []

    def failed(self, what: str, error: HoldfastError) -> None:
        """What the secondary could not do although the primary could."""
        match error:
            case ShadowDiverged():
                raise error
            # Bytes that it gives, but not those that were written.
            case CorruptBlob():
                self.report(what, "did it", f"raised: {error}")
            # Somebody else has taken it: he makes it what his primary is.
            case StorageError() | HandleExpired() | Fenced() | FenceRegressed():
                self.fall_behind(f"{what}: {error}")
            # Another process took it over and let go of the time at which this one reads.
            case AsOfTooEarly() if isinstance(self.handle, Catalog):
                self.fall_behind(f"{what}: {error}")
            # A reader holds no time on a stash; a sync moves it on.
            case AsOfTooEarly():
                self.past_gone = f"{what}: {error}"
            # Between the two sides of an upgrade, or somebody else has upgraded it alone.
            case VersionTooNew() | UpgradeNeeded():
                self.fall_behind(f"{what}: {error}")
            case _:
                self.report(what, "did it", f"raised: {error}")

    def refuses(self, what: str, expected: HoldfastError, call: Callable[[H], object]) -> None:
        """Compare with what the primary refused: the secondary must refuse it alike."""
        if self.handle is None:
            return
        try:
            found = call(self.handle)
        except HoldfastError as error:
            if type(error) is not type(expected):
                self.failed(what, error)
            return
        self.report(what, f"raised: {expected}", repr(found))

    def compare(self, what: str, primary: object, secondary: object) -> None:
        """Report a difference between two answers: messages, objects, and lists of them in any order."""
        if self.handle is None:
            return
        difference = differing(primary, secondary)
        if difference is not None:
            self.report(what, *difference)

    def report(self, what: str, primary: str, secondary: str) -> None:
        """Leave a secondary alone that has diverged."""
        error = ShadowDiverged(what, primary, f"{secondary} ({self.place})")
        self.drop()
        if self.diverged is None:
            self.diverged = error
            _log.error("%s", error)
            if self._on_diverged is not None:
                self._on_diverged(error)
        if self.strict:
            raise error

    def fall_behind(self, why: str) -> None:
        """Leave a secondary alone whose store failed, until it is rebuilt."""
        _log.warning("the shadow in %s is out of date: %s", self.place, why)
        self.out_of_date = why
        self.drop()

    def drop(self) -> None:
        """Close the handle, if there is one."""
        handle, self.handle = self.handle, None
        if handle is None:
            return
        try:
            handle.close()
        except HoldfastError as error:
            _log.warning("could not close the shadow in %s: %s", self.place, error)


def differing(primary: object, secondary: object) -> tuple[str, str] | None:
    """What each side has that the other has not, for people; None when they are equal."""
    match primary, secondary:
        case (list() | tuple(), list() | tuple()):
            mine, theirs = (
                [(canonical(each), each) for each in side if not _is_of_store(each)]
                for side in (primary, secondary)
            )
            more, less = (Counter(form for form, _ in side) for side in (mine, theirs))
            if more == less:
                return None
            return _alone(mine, more - less), _alone(theirs, less - more)
        case _ if canonical(primary) == canonical(secondary):
            return None
        case _:
            return _text(primary), _text(secondary)


def _is_of_store(answer: object) -> bool:
    """Whether it is config that says what one store is, and not what the catalog is."""
    match answer:
        case Object(pb.ConfigKey() as key, _):
            return key.key != config.USER_VERSION and config.is_reserved(key.key)
        case _:
            return False


def _alone(side: Iterable[tuple[Hashable, object]], wanted: Counter[Hashable]) -> str:
    found = {form: each for form, each in side if form in wanted}
    shown = ", ".join(_text(each) for each in list(found.values())[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"alone has {shown}{more}" if found else "has nothing more"


def canonical(answer: object) -> Hashable:
    """What is equal for equal answers, whatever the bytes in which a side has stored them."""
    match answer:
        case Object(key, value):
            return key.SerializeToString(deterministic=True), value.SerializeToString(deterministic=True)
        case Message():
            return answer.SerializeToString(deterministic=True)
        case _:
            assert isinstance(answer, Hashable)
            return answer


def _text(answer: object) -> str:
    match answer:
        case Object(key, value):
            return f"{{{_text(key)}}}: {{{_text(value)}}}"
        case Message():
            return " ".join(str(answer).split())
        case _:
            return repr(answer)
