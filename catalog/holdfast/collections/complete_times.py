"""Which times of a collection can be read, which only after a seal, and which times a write may have.

A time can be read once the collection's upper is past it. If nobody writes, the upper stands still. So a read
at a time that is past on the store's clock seals the collection first: it moves the upper forward without
rows. `seal_first` is the one place that decides this, and `check_write_ahead` is its counterpart for writes.

- Only the store's clock counts. All hosts agree on it, and a host whose clock is fast can't seal the future.
- A seal ends `BEHIND_MS` before the store's clock. So a writer whose clock or whose rows are a little late is
  not too late.
- A read doesn't seal within `EVERY_MS` of the last seal for a read. So any number of readers make at most one
  empty commit per minute, at whatever times they read.
- An upper up to `LEAST_MS` is not a wall time: the collection counts something, and only its writers know
  what comes next. Such a collection is never sealed.
- The earliest time that can be read is the since, also if the collection was created later: it is empty then,
  as it is at past times if nobody has written it yet.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from holdfast.errors import CLOSED, AsOfNotYetAvailable, AsOfTooEarly, BadInput
from holdfast.persist.state.state import Writer
from holdfast.persist.upkeep.leases import SEAL_FOR_A_READ
from holdfast.text import age, with_date

BEHIND_MS: Final = 60_000
"""How far behind the store's clock a seal for a read ends."""
EVERY_MS: Final = 60_000
"""The least time between two seals for reads."""
AHEAD_MS: Final = 3_600_000
"""How far ahead of the store's clock a write may be without permission."""
LEAST_MS: Final = 10**11
"""Times from here on are wall times in milliseconds: this is in 1973."""

# Each unit has a range of 2001 to 2286, and no two ranges overlap.
_SECONDS: Final = range(10**9, 10**10)
_MICROSECONDS: Final = range(10**15, 10**16)
_NANOSECONDS: Final = range(10**18, 10**19)


@dataclass(frozen=True, slots=True)
class ReadSeal:
    """The last seal for a read of a collection: the upper that it made, and the host of the reader."""

    upper: int
    host: str

    @property
    def at_ms(self) -> int:
        """The time of the store's clock at the seal."""
        return self.upper + BEHIND_MS

    @classmethod
    def last(cls, writers: Iterable[Writer]) -> Self | None:
        """The last one that the writers of a data shard show. None if they show none."""
        seals = [each for each in writers if each.purpose == SEAL_FOR_A_READ]
        last = max(seals, key=lambda each: each.last_upper, default=None)
        return None if last is None else cls(last.last_upper, last.hostname)

    def __str__(self) -> str:
        return (
            f"a read by host {self.host} sealed it up to {with_date(self.upper)} at {with_date(self.at_ms)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """What decides whether a time can be read.

    `store_ms` is the store's clock, or None if it is unknown. `now_ms` is the same, or else the host's clock:
    it shows which times are to come. `may_seal` is true for a client that may write. `is_fed` is true if a
    source writes the collection.
    """

    since: int
    upper: int
    store_ms: int | None
    now_ms: int
    may_seal: bool
    is_fed: bool
    last_seal: ReadSeal | None = None


def seal_first(time: int, known: Completeness, what: str, instead: str) -> int | None:
    """Return None if `time` can be read, or else the upper to which the collection must be sealed first.

    A collection that nobody has written reads as empty at times that are past. That promises nothing about
    later reads: it is not sealed, because only its first write shows whether its times are wall times.

    `what` names the collection in errors, such as "table orders". `instead` says how to read at the latest
    complete time.

    Raises `AsOfTooEarly` before the since. Raises `AsOfNotYetAvailable` if the time is not complete and this
    reader can't seal it: it is in the future or too recent, the collection is fed by a source or counts
    something, the reader may not write, or another read sealed less than a minute ago. Raises `BadInput` for
    a number in another unit than milliseconds.
    """
    check_unit(time, known.upper, what)
    if time < known.since:
        raise too_early(time, known.since, what)
    if time < known.upper:
        return None
    if known.upper == 0 and not known.is_fed and LEAST_MS <= time <= known.now_ms:
        # Nothing has been written, and the time is past: the collection is empty then.
        return None
    if known.upper <= LEAST_MS:
        raise incomplete(time, known.upper, what)
    check_past(time, known, what, instead)
    if (wait_ms := time + BEHIND_MS - known.now_ms) > 0:
        raise incomplete(time, known.upper, what, "", f"wait {_seconds(wait_ms)}, or {instead}")
    if known.is_fed:
        raise incomplete(time, known.upper, what, "only its source can complete later times", instead)
    if not known.may_seal:
        why = "only a client that may write can complete later times"
        hint = f"first read {what} at this time with such a client, as 'holdfast read' has, or {instead}"
        raise incomplete(time, known.upper, what, why, hint)
    if known.store_ms is None:
        raise incomplete(time, known.upper, what, "the store's clock is unknown", instead)
    if known.last_seal is not None and (wait_ms := known.last_seal.at_ms + EVERY_MS - known.store_ms) > 0:
        why = f"{known.last_seal}, and reads seal at most once a minute"
        raise incomplete(time, known.upper, what, why, f"wait {_seconds(wait_ms)}, or {instead}")
    return max(known.store_ms - BEHIND_MS, time + 1)


def check_past(time: int, known: Completeness, what: str, instead: str) -> None:
    """Raise `AsOfNotYetAvailable` for a time that is neither complete nor past, and `BadInput` like
    `seal_first`.

    A collection that counts something has no future times.
    """
    check_unit(time, known.upper, what)
    if time < known.upper or known.upper <= LEAST_MS or time <= known.now_ms:
        return
    why = f"the time is {age((time - known.now_ms) / 1000)} after the store's clock"
    raise incomplete(time, known.upper, what, why, instead)


def at_or_before(time: int, since: int, upper: int, what: str) -> int:
    """The latest complete time at or before `time`. Raises like `seal_first`, but not for later times."""
    check_unit(time, upper, what)
    if upper == 0:
        raise incomplete(time, upper, what)
    if time < since:
        raise too_early(time, since, what)
    return min(time, upper - 1)


def check_write_ahead(what: str, last: int, reached: int, now_ms: int, allow: str) -> None:
    """Raise `BadInput` if a write would move the time of a collection too far ahead of the store's clock.

    `last` is the last time of the write. Times up to `reached` move nothing. `allow` is how to permit it.
    """
    # Sealing to CLOSED ends a collection. Nobody does that by mistake.
    if last <= max(now_ms + AHEAD_MS, reached, LEAST_MS) or last == CLOSED - 1:
        return
    raise BadInput(
        f"{what} can't be written at {with_date(last)}: that is {age((last - now_ms) / 1000)} ahead of the"
        f" store's clock, {with_date(now_ms)}",
        hint=_unit_hint(last) or f"the time of a collection never goes back; if you mean this time, {allow}",
    )


def ahead_by(upper: int, now_ms: int) -> int:
    """How far the time of a collection is ahead of a clock, in milliseconds; negative if it is behind.

    0 for a collection that is closed, or whose times are no wall times.
    """
    return upper - 1 - now_ms if LEAST_MS < upper < CLOSED else 0


def too_late(name: str, time: int, upper: int, seal: ReadSeal | None, now_ms: int | None) -> BadInput:
    """The error for a write at a time that is already complete. `now_ms` is the store's clock, if known."""
    unit_hint = _unit_hint(time) if upper > LEAST_MS else ""
    sealed = sealed_past(time, seal)
    message = f"collection {name} is complete up to {upper}: rows can't be added at {time}{sealed}"
    if not unit_hint and now_ms is not None and (ahead := ahead_text(upper, now_ms)):
        return BadInput(f"{message}; its time is {ahead}", hint=to_repair(name))
    return BadInput(message, hint=unit_hint or f"write at {upper} or later")


def ahead_text(upper: int, now_ms: int) -> str:
    """How far the time of a collection is ahead of the store's clock. Empty if it is at most a minute."""
    ahead_ms = ahead_by(upper, now_ms)
    return f"AHEAD of the store's clock by {age(ahead_ms / 1000)}" if ahead_ms > BEHIND_MS else ""


def to_repair(name: str) -> str:
    """How to repair a collection whose time is ahead."""
    return (
        f"'holdfast read {name} --output FILE', then 'holdfast create NEW --from FILE' makes a collection"
        " with the times of the clock, without the history"
    )


def sealed_past(time: int, seal: ReadSeal | None) -> str:
    """What an error adds if a seal for a read made a write at `time` too late."""
    return "" if seal is None or seal.upper <= time else f"; {seal}"


def check_unit(time: int, upper: int, what: str) -> None:
    """Raise `BadInput` if a time looks like another unit, and the collection's times are milliseconds."""
    if upper <= LEAST_MS or (unit := _unit(time)) is None:
        return
    if time in _SECONDS or (time >= upper and upper < _MICROSECONDS.start):
        raise BadInput(
            f"{what} can't be read at {time}: that looks like {unit[0]}, and its times are milliseconds",
            hint=f"give {with_date(unit[1])}",
        )


def too_early(time: int, since: int, what: str) -> AsOfTooEarly:
    """The error for a time before the since."""
    return AsOfTooEarly(
        time,
        since,
        message=f"{what} can't be read at {with_date(time)}, because its earlier versions were compacted",
        hint=f"read at {with_date(since)} or later",
    )


def incomplete(time: int, upper: int, what: str, why: str = "", hint: str = "") -> AsOfNotYetAvailable:
    """The error for a time that is not complete."""
    latest = (
        f"its latest complete time is {with_date(upper - 1)}" if upper else "nothing has been written yet"
    )
    message = f"{what} is not complete at {with_date(time)}: {latest}{f', and {why}' if why else ''}"
    return AsOfNotYetAvailable(time, upper, message=message, hint=hint)


def _unit(time: int) -> tuple[str, int] | None:
    """The unit that a number looks like, if that is not milliseconds, and the time in milliseconds."""
    if time in _SECONDS:
        return "seconds", time * 1000
    if time in _MICROSECONDS:
        return "microseconds", time // 1000
    if time in _NANOSECONDS:
        return "nanoseconds", time // 1_000_000
    return None


def _unit_hint(time: int) -> str:
    """The hint for a number that looks like another unit. Empty if it does not."""
    unit = _unit(time)
    return f"{time} looks like {unit[0]}: give milliseconds, {with_date(unit[1])}" if unit else ""


def _seconds(ms: int) -> str:
    return f"{-(-ms // 1000)} s"
