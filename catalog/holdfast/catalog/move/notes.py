"""What each of two linked stores notes about the other one, and about the moves between them. Pure.

A store that returns to an older state contradicts what the other one noted. These are the notes of a store,
each a key of its config that begins with `config.LINK_NOTE` and the name of the store:

- `saw_upper`, `saw_nonce`: the upper of the other store, and the nonce of its fence token, as they were read
  before the commit that writes them;
- `initialized`: 1 once the other store held a catalog;
- `arrived`, `arrived_since`: the number of the move that brought the contents, and the `config.TRUTH_SINCE`
  that was written with it;
- `moved`, `moved_since`: the same of the last move that was completed, as far as this store knows;
- `link`: the number of the link that all of these belong to.

Invariants
- A store that returned and went on, as it may in an emergency, passes the upper that was noted. So where its
  token is another one now, its past at that upper is compared.
- A note never tells more than what was durable in the other store when it was written. Both stores restored
  to states between which nobody opened the catalog fit together.
- A number counts only with the `TRUTH_SINCE` beside it: a Holdfast that knows no numbers moves contents and
  leaves the old number behind. The times at which contents arrive only rise, so its move is a later one.
- Notes of another link count for nothing. A Holdfast that doesn't know these keys copies them with the
  contents: so each names the store that it belongs to.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.catalog import config
from holdfast.catalog.move.seen import Seen
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.stores.preamble import Preamble

_SAW_UPPER, _SAW_NONCE, _INITIALIZED = "saw_upper", "saw_nonce", "initialized"
_ARRIVED, _ARRIVED_SINCE, _MOVED, _MOVED_SINCE = "arrived", "arrived_since", "moved", "moved_since"
_LINK = "link"
_NAMES = (_SAW_UPPER, _SAW_NONCE, _INITIALIZED, _ARRIVED, _ARRIVED_SINCE, _MOVED, _MOVED_SINCE, _LINK)

_RANDOM_BITS = 40
_COUNTS = 1 << 24


@dataclass(frozen=True)
class Move:
    """A move: its number, and from which time on the contents that it brought are the catalog's."""

    number: int
    since: int


def key(backend: Backend, name: str) -> str:
    """The key of a note of a store."""
    return f"{config.LINK_NOTE}{backend.value.lower()}/{name}"


def no_notes(backend: Backend) -> dict[str, int | None]:
    """The config without the notes of one store."""
    return {key(backend, name): None for name in _NAMES}


NO_NOTES: Mapping[str, int | None] = {name: None for backend in Backend for name in no_notes(backend)}
"""The config without any."""


def next_move(seen: Seen, since: int) -> Move:
    """A move after all that the stores know of, whose contents are the catalog's from `since` on."""
    known = [
        move.number >> _RANDOM_BITS for backend in Backend for move in _numbers(seen.of(backend), backend)
    ]
    count = (max(known, default=0) + 1) % _COUNTS
    return Move(count << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS), since)


def arrived(seen: Seen, backend: Backend) -> Move | None:
    """The move that brought what a store holds; None where it has no number."""
    at = seen.of(backend)
    move = _move(at, backend, _ARRIVED, _ARRIVED_SINCE)
    return move if move is not None and move.since == at.truth_since else None


def arriving(backend: Backend, move: Move) -> dict[str, int | None]:
    """What a store notes with the contents that a move brings."""
    return {key(backend, _ARRIVED): move.number, key(backend, _ARRIVED_SINCE): move.since}


def completing(backend: Backend, move: Move | None) -> dict[str, int | None]:
    """What a store notes of the last move that was completed."""
    if move is None:
        return {}
    return {key(backend, _MOVED): move.number, key(backend, _MOVED_SINCE): move.since}


def looked(seen: Seen, backend: Backend) -> dict[str, int | None]:
    """What a store notes about the other one, as that was read; notes of another link go."""
    at, other = seen.of(backend), seen.of(backend.other)
    link = at.config.get(config.LINK)
    if link is None:
        return {}
    wanted = no_notes(backend.other)
    if not _is_of_link(at, backend):
        wanted |= no_notes(backend)
    wanted |= {
        key(backend, _LINK): link,
        key(backend, _SAW_UPPER): other.upper,
        key(backend, _SAW_NONCE): nonce_of(other),
    }
    if other.is_initialized:
        wanted[key(backend, _INITIALIZED)] = 1
    return wanted


def has_looked(seen: Seen, backend: Backend) -> bool:
    """Whether a store's notes tell the present fence token of the other one, and whether it has a catalog."""
    at, other = seen.of(backend), seen.of(backend.other)
    return (
        _is_of_link(at, backend)
        and at.config.get(key(backend, _SAW_NONCE)) == nonce_of(other)
        and (not other.is_initialized or _tells_initialized(at, backend))
    )


def nonce_of(seen: Preamble) -> int:
    """The part of the nonce of a store's fence token that the other one notes."""
    token = seen.token
    return 0 if token is None else int.from_bytes(token.nonce[:8], "big")


def noted(seen: Seen, backend: Backend) -> tuple[int, int] | None:
    """Upper and nonce of a store as the other one noted them last; None where it noted none."""
    at = seen.of(backend.other)
    if not _is_of_link(at, backend.other):
        return None
    upper, nonce = (at.config.get(key(backend.other, name)) for name in (_SAW_UPPER, _SAW_NONCE))
    return None if not upper or nonce is None else (upper, nonce)


def returned(seen: Seen) -> Backend | None:
    """The store that is older than what the other one noted about it; None where both fit together."""
    for backend in Backend:
        at, other = seen.of(backend), seen.of(backend.other)
        if not _is_of_link(at, backend):
            continue
        saw = at.config.get(key(backend, _SAW_UPPER), 0)
        if other.upper < saw:
            return backend.other
        if other.upper == saw and saw and at.config.get(key(backend, _SAW_NONCE)) != nonce_of(other):
            return backend.other
    return None


def holds_other_contents(seen: Seen, truth: Backend) -> bool:
    """Whether what the truth holds is not what the last move brought that either store knows of."""
    last = max(
        (move for backend in Backend if (move := _completed(seen.of(backend), backend)) is not None),
        key=lambda move: move.since,
        default=None,
    )
    if last is None:
        return False
    here = arrived(seen, truth)
    if here is None:
        # A Holdfast without numbers may have moved it since.
        return seen.of(truth).truth_since <= last.since
    return here != last


def held_a_catalog(seen: Seen, truth: Backend) -> bool:
    """Whether anything tells that there was a catalog, whatever the truth holds."""
    other = seen.of(truth.other)
    return (
        other.is_initialized
        or any(found.startswith(config.MIGRATION_RECORD) for found in seen.stash.config)
        or any(_completed(seen.of(backend), backend) is not None for backend in Backend)
        or (_is_of_link(other, truth.other) and _tells_initialized(other, truth.other))
    )


def _tells_initialized(at: Preamble, backend: Backend) -> bool:
    return at.config.get(key(backend, _INITIALIZED)) == 1


def _is_of_link(at: Preamble, backend: Backend) -> bool:
    link = at.config.get(config.LINK)
    return link is not None and at.config.get(key(backend, _LINK)) == link


def _completed(at: Preamble, backend: Backend) -> Move | None:
    return _move(at, backend, _MOVED, _MOVED_SINCE)


def _numbers(at: Preamble, backend: Backend) -> list[Move]:
    found = _move(at, backend, _ARRIVED, _ARRIVED_SINCE), _completed(at, backend)
    return [move for move in found if move is not None]


def _move(at: Preamble, backend: Backend, number: str, since: str) -> Move | None:
    if not _is_of_link(at, backend):
        return None
    found = at.config.get(key(backend, number)), at.config.get(key(backend, since))
    return None if found[0] is None or found[1] is None else Move(found[0], found[1])
