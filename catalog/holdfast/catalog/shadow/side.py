"""The secondary of a shadow: its handle and its state.

Invariants
- The secondary decides nothing. Whatever happens to it, the result is the primary's. With `strict`, for
  tests, a difference raises an error instead.
- A secondary whose store fails is out of date. A secondary whose result differs has diverged. In both cases
  it is not used any more until a resync.
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
from holdfast.catalog.objects.registry import FENCE_TOKENS, OBJECT_TYPES, ObjectType
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

COMPARED: tuple[ObjectType[Any, Any], ...] = tuple(
    row for row in OBJECT_TYPES.values() if row is not FENCE_TOKENS
)
"""The types that are compared. Each side has its own fence token."""


def compared_rows(catalog: ReadOnlyCatalog) -> Iterator[Row]:
    """The rows of one side, as they are written to the other."""
    return (
        encode(collection, found.key, found.value)
        for collection in COMPARED
        for found in catalog.stream(collection)
    )


_SHOWN = 3


class ShadowSide(Generic[H]):
    """The secondary of an open shadow. `handle` is None while it is out of date or has diverged."""

    def __init__(self, place: str, *, strict: bool, on_diverged: OnDiverged | None) -> None:
        self.place = place
        self.strict = strict
        self.handle: H | None = None
        self.diverged: ShadowDiverged | None = None
        self.out_of_date: str | None = None
        self.past_gone: str | None = None
        """Why the secondary of a reader is not compared until the next sync."""
        self._on_diverged = on_diverged

    def attach(self, handle: H) -> None:
        """Use a handle whose contents are equal to the primary's."""
        self.handle, self.diverged, self.out_of_date, self.past_gone = handle, None, None, None

    def attempt(self, what: str, call: Callable[[H], T]) -> list[T]:
        """The result of a call on the secondary, in a list.

        Empty if there is no secondary or the call failed.
        """
        if self.handle is None:
            return []
        try:
            return [call(self.handle)]
        except HoldfastError as error:
            self.failed(what, error)
            return []

    def failed(self, what: str, error: HoldfastError) -> None:
        """Handle an error of the secondary in a call that succeeded on the primary."""
        match error:
            case ShadowDiverged():
                raise error
            # It returned bytes that are not those that were written.
            case CorruptBlob():
                self.report(what, "did it", f"raised: {error}")
            # Another process has taken it over, and copies its own primary to it.
            case StorageError() | HandleExpired() | Fenced() | FenceRegressed():
                self.fall_behind(f"{what}: {error}")
            # Another process took it over and released the time at which this one reads.
            case AsOfTooEarly() if isinstance(self.handle, Catalog):
                self.fall_behind(f"{what}: {error}")
            # A reader holds no time on a stash. A sync moves to a newer one.
            case AsOfTooEarly():
                self.past_gone = f"{what}: {error}"
            # The upgrade is done on one side only so far, or somebody upgraded the secondary alone.
            case VersionTooNew() | UpgradeNeeded():
                self.fall_behind(f"{what}: {error}")
            case _:
                self.report(what, "did it", f"raised: {error}")

    def refuses(self, what: str, expected: HoldfastError, call: Callable[[H], object]) -> None:
        """Check that the secondary refuses what the primary refused, with the same kind of error."""
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
        """Report a difference between two results: messages, objects, or lists of them in any order."""
        if self.handle is None:
            return
        difference = differing(primary, secondary)
        if difference is not None:
            self.report(what, *difference)

    def report(self, what: str, primary: str, secondary: str) -> None:
        """Report that the secondary has diverged, and stop using it."""
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
        """Stop using a secondary whose store failed, until a resync."""
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
            _log.warning("can't close the shadow in %s: %s", self.place, error)


def differing(primary: object, secondary: object) -> tuple[str, str] | None:
    """What only one of the sides has, as text for each side. None if they are equal."""
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
    """Whether it is config about one store, and not part of the contents."""
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
    """A value that is equal for equal results, whatever bytes a side has stored."""
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
