"""What each of two linked stores notes about the other one, and about the moves between them. Pure.

If a store is restored to an older state, it contradicts what the other one noted. These are the notes of a
store. Each is a key of its config, with the prefix `config.LINK_NOTE` and the name of the store:

- `saw_upper`, `saw_nonce`: the upper of the other store and the nonce of its fence token, as they were read
  before the commit that writes them;
- `initialized`: 1 once the other store held a catalog;
- `arrived`, `arrived_since`: the number of the move that brought the contents, and the `config.TRUTH_SINCE`
  that was written with it;
- `moved`, `moved_since`: the same for the last completed move that this store knows;
- `link`: the number of the link that all of these belong to.

Invariants
- A store that was restored and then written, as in an emergency, may pass the upper that was noted. So if its
  token differs from the noted one, its past at that upper is compared.
- A note contains only what was durable in the other store when it was written. If both stores are restored to
  states between which nobody opened the catalog, they fit together.
- A number counts only with the `TRUTH_SINCE` that was written with it. A Holdfast that doesn't know numbers
  moves contents and leaves the old number behind. The times at which contents arrive only rise, so that move
  is later.
- Notes of another link don't count. A Holdfast that doesn't know these keys copies them with the contents, so
  each key names the store that it belongs to.
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
    """A move: its number, and the earliest time at which its contents are the catalog's."""

    number: int
    since: int


def key(backend: Backend, name: str) -> str:
    """The config key of a note of a store."""
    return f"{config.LINK_NOTE}{backend.value.lower()}/{name}"


def no_notes(backend: Backend) -> dict[str, int | None]:
    """The config changes that remove the notes of one store."""
    return {key(backend, name): None for name in _NAMES}


NO_NOTES: Mapping[str, int | None] = {name: None for backend in Backend for name in no_notes(backend)}
"""The config changes that remove all notes."""


def next_move(seen: Seen, since: int) -> Move:
    """A move later than all that the stores know. Its contents are the catalog's from `since` on."""
    known = [
        move.number >> _RANDOM_BITS for backend in Backend for move in _numbers(seen.of(backend), backend)
    ]
    count = (max(known, default=0) + 1) % _COUNTS
    return Move(count << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS), since)


def arrived(seen: Seen, backend: Backend) -> Move | None:
    """The move that brought a store's contents. None if it has no number."""
    at = seen.of(backend)
    move = _move(at, backend, _ARRIVED, _ARRIVED_SINCE)
    return move if move is not None and move.since == at.truth_since else None


def arriving(backend: Backend, move: Move) -> dict[str, int | None]:
    """The note that a store gets with the contents of a move."""
    return {key(backend, _ARRIVED): move.number, key(backend, _ARRIVED_SINCE): move.since}


def completing(backend: Backend, move: Move | None) -> dict[str, int | None]:
    """The note that a store gets about the last completed move."""
    if move is None:
        return {}
    return {key(backend, _MOVED): move.number, key(backend, _MOVED_SINCE): move.since}


def looked(seen: Seen, backend: Backend) -> dict[str, int | None]:
    """The notes of a store about the other one, as it was read. Removes notes of another link."""
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
    """Whether a store has noted the other one's current fence token, and its catalog if it has one."""
    at, other = seen.of(backend), seen.of(backend.other)
    return (
        _is_of_link(at, backend)
        and at.config.get(key(backend, _SAW_NONCE)) == nonce_of(other)
        and (not other.is_initialized or _tells_initialized(at, backend))
    )


def nonce_of(seen: Preamble) -> int:
    """The part of the nonce of a store's fence token that the other store notes."""
    token = seen.token
    return 0 if token is None else int.from_bytes(token.nonce[:8], "big")


def noted(seen: Seen, backend: Backend) -> tuple[int, int] | None:
    """The upper and nonce of a store as the other one last noted them. None if it has not."""
    at = seen.of(backend.other)
    if not _is_of_link(at, backend.other):
        return None
    upper, nonce = (at.config.get(key(backend.other, name)) for name in (_SAW_UPPER, _SAW_NONCE))
    return None if not upper or nonce is None else (upper, nonce)


def returned(seen: Seen) -> Backend | None:
    """The store that is older than the other one has noted. None if both fit together."""
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
    """Whether the contents of the truth are not those of the last move that either store knows."""
    last = max(
        (move for backend in Backend if (move := _completed(seen.of(backend), backend)) is not None),
        key=lambda move: move.since,
        default=None,
    )
    if last is None:
        return False
    here = arrived(seen, truth)
    if here is None:
        # A Holdfast that doesn't know numbers may have moved it since.
        return seen.of(truth).truth_since <= last.since
    return here != last


def held_a_catalog(seen: Seen, truth: Backend) -> bool:
    """Whether anything shows that there was a catalog, even if the truth is empty now."""
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
