# ruff: noqa: D102 - the trait documents its methods
"""Consensus on an object store alone: one log for all keys of a location, one object per step.

Three kinds of objects make up the log:

- *Log objects* have the positions 1, 2, and so on. Object `p` contains the entries and truncations of one
  step, a random token, and the token of object `p - 1`.
- *Checkpoints* contain the whole state at a position, and the tokens of the last `RECENT` objects.
- *The floor* is a single object that names the newest checkpoint. Log objects below the floor may be deleted.

To append, a process first reads the log to its end, at `p - 1`. It checks the conditions of its commands
against this state, and puts object `p` with the condition that no object `p` exists (`If-None-Match`). Then
it reads the floor and checks that the objects before `p` are still there. Only then does it report success.
Nothing locks the log, so the following interleavings are possible:

1. *Two processes put object `p`.* The service accepts one of them. The other process reads object `p`, checks
   its commands again, and puts `p + 1`. A process that puts object `p` has read everything before it, so what
   it checked is true at the commit point, for any number of keys.
2. *A slow process puts object `p` after others deleted the first object `p`.* The service accepts the object,
   because the name is free again. But a floor above `p` is durable before the first object is deleted, and
   the floor never goes back. The slow process reads the floor after its put, finds that it has passed `p`,
   and reads the newest checkpoint. The checkpoint does not have its token, so the append did not happen. No
   reader takes the object for part of the log: a new reader begins at the checkpoint, and a reader that is
   behind finds that the next object is missing, or does not name the token of this one, and then reads the
   floor.
3. *A reader finds no object after `p`, although the log continues.* Objects were put and deleted since the
   reader got to `p`. So the end of the log counts only if the floor, read afterwards, is not beyond it.
   Otherwise the reader opens the newest checkpoint.
4. *The outcome of a put is unknown.* The process sends the object again until there is an object `p`, its own
   or another one. Then it compares tokens. If the floor has passed `p`, it looks for its tokens in the
   checkpoint. Each attempt has its own token. Otherwise an early attempt that lands late, in a store that
   went back, would look like the object that is known.
5. *Two processes write a checkpoint.* Each replaces the floor under the condition that it is still the one
   that the process read (`If-Match`). One of them loses, and deletes its checkpoint. Objects are deleted only
   after the new floor is durable, and only if the floor and its checkpoint are still the newest.

The store may also return to an older state at any moment: a bucket is restored, or objects are deleted. So a
process that finds the end of the log, or has put an object, checks that the objects before it are still
there. The check reaches back to the newest *confirmed* object. An unconfirmed object proves nothing, even if
this process put it, because it may lie above a gap. The requests of the check run in parallel with the one
for the floor. The results are:

- An object is gone or is another one, and the floor has not passed it: `LogRegressed`. A floor that is lower
  than one that was seen is `LogRegressed` too.
- If the log continues after a missing object, it has a gap, which is `CorruptBlob`. A process lists objects
  beyond the end when it opens the log, and when its last check is older than `_IDLE_S`. It also finds a gap
  below the newest checkpoint.
- After either error, every call raises it again. Nothing is deleted, not even an object above a gap.
- The check comes after the put, so an object can be put above a gap. This append is `Indeterminate` and is
  not acknowledged: it would be part of the log if the lost objects came back. New processes find the gap
  until a person decides.

Three losses stay unnoticed for a while:

- A loss after the last check is found by the next check.
- A process may be behind, and read without pause. If the very next object is lost while later ones stay, the
  process takes that position for the end. It finds the gap when it meets a later object, after a pause, or
  when the next checkpoint is written.
- If an object below the newest one is lost, a process that opens the log or runs `check_integrity` finds it.
  A process that has read the object before does not.

Some notes on cost:

- One thread of a process makes a step for all threads that wait. Their commands share one object, and each
  gets its own result. The floor is read in parallel with the next step, so a location makes one step per put.
- Every process that has the store open keeps all remaining entries in memory.
- The process whose object falls on a checkpoint position writes the checkpoint. It contains only objects that
  are known to be part of the log.
"""

import os
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeVar

from holdfast.errors import (
    CorruptBlob,
    Determinate,
    Indeterminate,
    LogRegressed,
    NoLocation,
    NotWritable,
    StorageError,
    StoreUnreachable,
)
from holdfast.persist.clock import Clock, TimeLeft
from holdfast.persist.looks import earliest, moment
from holdfast.persist.stores.log_codec import (
    CHECKPOINT_FOLDER,
    FLOOR_NAME,
    LOG_FOLDER,
    checkpoint_name,
    decode_checkpoint,
    decode_floor,
    decode_object,
    encode_checkpoint,
    encode_floor,
    encode_object,
    object_name,
)
from holdfast.persist.stores.log_losses import (
    first_missing,
    gap,
    losses_hint,
    lost,
    newest_checkpoint,
    no_successor,
    positions_after,
    regressed,
)
from holdfast.persist.stores.log_restart import last_position, next_beginning, restarted
from holdfast.persist.stores.log_state import Command, Floor, LogAppend, LogObject, LogState, Truncate, draft
from holdfast.persist.stores.log_turn import ReadObject, Request, Turns, settle
from holdfast.persist.stores.objects import MANY, NO_TAG, Found, Objects
from holdfast.persist.stores.traits import (
    NOTHING_KNOWN,
    UNKNOWN_ARGUMENTS,
    Consensus,
    Entry,
    Expect,
    Head,
    LogRow,
    Lost,
    Put,
    check_commands,
    check_key,
    check_scan,
)

T = TypeVar("T")

CHECKPOINT_EVERY: Final = 64
"""Objects between checkpoints. A larger number means a longer replay, and more time for slow readers.

To write a checkpoint takes six requests one after the other, and each 16 objects of a replay take one."""
_SMALL_BYTES: Final = 64 * 1024
"""A larger state gets a new checkpoint only when half of its bytes are new."""
_READ_AHEAD: Final = 16
_WAITS_S: Final = (0.1, 0.4)
"""The longest waits before the second and third attempt to put an object of unknown outcome."""
_PATIENCE_S: Final = 30.0
"""How long a process retries while other processes are faster."""
_IDLE_S: Final = 10.0
"""If the last check is older than this, the next one lists the objects beyond the end of the log."""


class _Sent(NamedTuple):
    """An object that was put, the tag of its version, and the tokens of all attempts to put it."""

    added: LogObject
    tag: str
    tokens: frozenset[bytes]


class S3LogConsensus(Consensus):
    """The logs in `objects`. With `create`, the log is made if it does not exist.

    Raises `StoreUnreachable` if the log is missing, and `CorruptBlob` or `VersionTooNew` if it can't be read.
    With `read_only` nothing is written. With `for_recovery`, a log that can't be read, or that has a gap, is
    opened up to that point. `lost` then returns why it ends, and only `restart` can change it.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        create: bool = True,
        read_only: bool = False,
        for_recovery: bool = False,
        clock: Clock | None = None,
        checkpoint_every: int = CHECKPOINT_EVERY,
        arguments: str = UNKNOWN_ARGUMENTS,
    ) -> None:
        self._objects: Final = objects
        self._hint: Final = losses_hint(arguments)
        self._read_only: Final = read_only
        self._clock: Final = clock or Clock()
        self._checkpoint_every: Final = checkpoint_every
        self._closed = False
        # Whether a restart has moved the log beyond all positions that other processes know.
        self._is_recovering = False
        # The error that all calls raise, after the log lost something that this process knows.
        self._ended: CorruptBlob | None = None
        self._lost: Lost | None = None
        # The tag of a floor that recovery can't read; "" if there is no floor; None if the floor is good.
        self._bad_floor: str | None = None
        try:
            floor = self._floor_seen = self._first_floor(create=create and not read_only, bad=for_recovery)
            self._log_id: Final = floor.log_id
            self._turns = self._begin_what_is_left(floor) if for_recovery else self._begin(floor)
        except Determinate as error:
            raise StoreUnreachable(str(error), hint=error.hint) from error

    @property
    def description(self) -> str:
        return f"consensus log in {self._objects.description}"

    def heads(self, keys: Sequence[str], known: Mapping[str, int] = NOTHING_KNOWN) -> dict[str, Head]:
        for key in keys:
            check_key(key)
        return self._read(
            lambda state: {
                key: Head(*state.logs[key][-1], state.digest(key, known.get(key, 0)))
                for key in keys
                if key in state.logs
            }
        )

    def scan(self, key: str, from_seqno: int, limit: int) -> list[Entry]:
        check_scan(key, limit)
        return self._read(lambda state: state.scan(key, from_seqno, limit))

    def list_keys(self) -> list[str]:
        return self._read(lambda state: sorted(state.logs))

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        check_commands(puts, expect)
        copied = tuple(Put(put.key, put.seqno, bytes(put.data), put.after) for put in puts)
        return bool(self._submit(LogAppend(copied, tuple(expect))))

    def truncate(self, key: str, seqno: int, known: LogRow | None = None) -> int:
        check_key(key)
        return int(self._submit(Truncate(key, seqno, known)))

    def lost(self) -> Lost | None:
        return self._lost

    def check_integrity(self) -> None:
        turns = self._refresh(moment())
        with turns.lock:
            end = turns.confirmed
        _, floor = self._open(self._floor_seen)
        listed = list(positions_after(self._objects, floor.floor - 1))
        last = max([end, *listed[-1:]])
        for missing in sorted({*range(floor.floor, last + 1)} - {*listed}):
            self._check_gap(missing, last)

    def check_restart(self) -> None:
        pass

    def restart(self, key: str, seqno: int, data: bytes) -> bool:
        check_commands([Put(key, seqno, data)], ())
        self._check_writable(restarts=True)
        turns = self._refresh(moment())
        floor, tag = (self._floor_seen, "") if self._bad_floor is not None else self._read_floor()
        with turns.lock:
            if turns.state.head(key) >= seqno:
                return False
            position = turns.state.position + 1
            if not self._is_recovering:
                position = next_beginning(max(position, floor.floor, last_position(self._objects)))
            state = restarted(turns.state, key, seqno, data, position=position)
        name = checkpoint_name(position, uuid.uuid4().hex)
        newer = Floor(self._log_id, position + 1, name, position)
        made = self._objects.create(name, encode_checkpoint(state, self._log_id))
        if self._bad_floor == "":
            is_placed = bool(self._objects.create(FLOOR_NAME, encode_floor(newer)))
        else:
            is_placed = self._objects.replace(FLOOR_NAME, encode_floor(newer), self._bad_floor or tag)
        if not is_placed:
            self._objects.delete([name])
            return False
        turns.replace(state, newer)
        self._floor_seen, self._lost, self._bad_floor = newer, None, None
        self._is_recovering = True
        with suppress(StorageError):  # the rest is below the floor, and the next checkpoint deletes it
            self._delete_older(newer, made)
        return True

    def close(self) -> None:
        self._closed = True
        self._objects.close()

    def _submit(self, command: Command) -> bool | int:
        """Wait until this thread or another one has put the command in an object. Return its result."""
        self._check_writable()
        turns = self._own()
        request = Request(command)
        group = turns.enter(request)
        if group:
            with settle(group):
                self._lead(turns, group)
        return request.answer.result()

    def _check_writable(self, *, restarts: bool = False) -> None:
        if self._read_only:
            raise NotWritable(f"can't write to {self.description}: it was opened for reading only")
        if self._lost is not None and not restarts:
            raise Determinate(f"{self.description} was opened for recovery only")

    def _check_not_ended(self) -> None:
        if self._ended is not None:
            raise self._ended.again()

    def _end(self, error: CorruptBlob) -> CorruptBlob:
        """Make every later call raise this error."""
        self._ended = error
        return error

    def _lead(self, turns: Turns, group: Sequence[Request]) -> None:
        began = moment()
        with turns.passed_on():
            step = self._step(turns, group)
        if step is not None:
            self._confirm(turns, *step)
            # The put has shown that the state before it was that of the whole log.
            turns.read_at = max(turns.read_at, began)

    def _step(
        self, turns: Turns, group: Sequence[Request]
    ) -> tuple[_Sent, dict[Request, bool | int], LogState | None] | None:
        """Put the next object. Return it, the results if it is part of the log, and a state for a checkpoint.

        The state is None if no checkpoint is due. Return None if no command holds; then all have their
        results.
        """
        is_newest = False
        left = TimeLeft(self._clock, _PATIENCE_S)
        first: int | None = None
        waiting = list(group)
        self._give_way(turns)
        while True:
            self._check_not_ended()
            with turns.lock:
                state = turns.state
                drafted = draft(state, [request.command for request in waiting])
                added = LogObject(
                    self._log_id,
                    state.position + 1,
                    uuid.uuid4().bytes,
                    state.token,
                    drafted.puts,
                    drafted.truncations,
                )
            if drafted.refused and not is_newest:
                self._catch_up(turns)
                is_newest = True
                continue
            for number in drafted.refused:
                waiting[number].answer.set_result(False)
            if not drafted.taken:
                return None
            answers: dict[Request, bool | int] = {waiting[n]: answer for n, answer in drafted.taken.items()}
            answers |= {waiting[number]: False for number in drafted.beaten}
            waiting = list(answers)
            sent = self._create(turns, added)
            if sent is not None:
                with turns.lock:
                    turns.won(sent.added, sent.tag)
                    due = self._is_due(turns.state) and turns.state.position == added.position
                    return sent, answers, turns.state.copy() if due else None
            is_newest = True
            first = added.position if first is None else first
            if left.after_attempt() < 0:
                if first == added.position and turns.state.position < first:
                    raise CorruptBlob(
                        f"{object_name(first)} in {self._objects.description}",
                        "a put to succeed, because no such object exists",
                        "a refused put, although no other process wrote",
                    )
                raise Determinate(
                    f"can't write to {self.description}: other processes were faster in each attempt of"
                    f" {_PATIENCE_S:g} s",
                    hint="nothing was written; try again, let fewer processes write, or use consensus on"
                    " Postgres",
                )

    def _give_way(self, turns: Turns) -> None:
        """Wait, so that processes that lost to this one can read its object. Otherwise they keep losing."""
        if turns.is_contended:
            self._clock.sleep(random.uniform(0, turns.put_s))  # noqa: S311 - no secret

    def _create(self, turns: Turns, added: LogObject) -> _Sent | None:
        """Put an object. Return None if there is another one; the state then includes it."""
        name = object_name(added.position)
        tokens = {added.token}
        waits = list(_WAITS_S)
        unknown: Indeterminate | None = None
        while True:
            began = self._clock.monotonic()
            try:
                tag = self._objects.create(name, encode_object(added))
                turns.put_s = self._clock.monotonic() - began
                break
            except Determinate:
                if unknown is not None:
                    raise unknown from None
                raise
            except Indeterminate as error:
                unknown = error
                if not waits:
                    raise
            self._clock.sleep(random.uniform(0, waits.pop(0)))  # noqa: S311 - no secret
            added = replace(added, token=uuid.uuid4().bytes)
            tokens.add(added.token)
        sent = _Sent(added, tag or NO_TAG, frozenset(tokens))
        if tag:
            return sent
        try:
            self._catch_up(turns)
        except StorageError:
            if unknown is not None:
                raise unknown from None
            raise
        return sent if unknown is not None and self._holds(turns, sent) else None

    def _holds(self, turns: Turns, sent: _Sent) -> bool:
        """Whether an object that may have been put is part of the log. The state has reached its position."""
        position = sent.added.position
        with turns.lock:
            token = turns.state.token_at(position)
        if token is None:
            raise Indeterminate(
                f"it is unknown whether a put at position {position} of {self.description} succeeded: the"
                " log was truncated beyond it before the service responded",
                hint="read the shard again to see whether the write is there",
            )
        return token in sent.tokens

    def _confirm(
        self, turns: Turns, sent: _Sent, answers: dict[Request, bool | int], due: LogState | None
    ) -> None:
        added = sent.added
        try:
            look = self._look(turns, added.position - 1, end=added.position)
            if look is not None and look[0].checkpoint_position >= added.position:
                # The checkpoint is beyond this object. It shows whether the log continued from it.
                self._open_anew(turns)
                look = None
            if look is None:
                self._catch_up(turns)
            is_in = look is not None or self._holds(turns, sent)
        except StorageError as error:
            raise Indeterminate(
                f"it is unknown whether a put at position {added.position} of {self.description} succeeded:"
                f" {error}"
            ) from error
        if not is_in:
            raise Determinate(
                f"the object that was put at {added.position} is not part of {self.description}: the log was"
                " truncated beyond it, or lost what was there"
            )
        turns.confirm(added.position)
        for request, answer in answers.items():
            request.answer.set_result(answer)
        if look is None:
            return
        floor, tag = look
        with turns.lock:
            turns.state.note_checkpoint(floor.checkpoint_position if due is None else added.position)
        if due is not None and floor.checkpoint_position < added.position:
            self._checkpoint(turns, due, floor, tag)

    def _read(self, look: Callable[[LogState], T]) -> T:
        """Return what `look` returns for the log, as of some point since the call or its `one_look`."""
        wanted = earliest()
        while True:
            turns = self._refresh(wanted)
            with turns.lock:
                position, is_known = turns.state.position, turns.confirmed >= turns.state.position
                seen = look(turns.state)
            # A thread of this process may have put an object after the end was found, maybe above a gap.
            if is_known or self._lost is not None or self._look(turns, position) is not None:
                return seen
            wanted = moment()

    def _refresh(self, wanted: int) -> Turns:
        """Bring the state to the end of the log, as of some point since the moment `wanted` (`looks`)."""
        turns = self._own()
        if self._lost is not None:
            return turns
        with turns.reading:
            if turns.read_at < wanted:
                began = moment()
                self._catch_up(turns)
                turns.read_at = began
        return turns

    def _own(self) -> Turns:
        """Return the turns of this process. A forked child opens the log again, without its locks."""
        if self._closed:
            raise Determinate.closed(self.description)
        self._check_not_ended()
        if self._turns.pid != os.getpid():
            self._turns = self._begin(self._read_floor()[0])
        return self._turns

    def _begin(self, floor: Floor) -> Turns:
        began = moment()
        (state, opened_by), found = self._open_with_more(floor)
        turns = Turns(state, opened_by)
        try:
            self._catch_up(turns, _READ_AHEAD, found)
            turns.read_at = began
        except LogRegressed as error:
            # Nothing was open yet, so no handles end: the log lost what its own objects name.
            raise CorruptBlob(error.key, error.expected, error.actual, hint=self._hint) from None
        return turns

    def _first_floor(self, *, create: bool, bad: bool) -> Floor:
        """Read or make the floor. If it is unreadable and `bad` is set, return the floor of an empty log."""
        found = self._objects.get(FLOOR_NAME)
        try:
            if found is None:
                found = self._make_log(create=create)
            return decode_floor(found.data, self._objects.description)
        except CorruptBlob as error:
            if not bad:
                raise
            self._bad_floor = "" if found is None else found.tag
            self._lost = lost(self._objects, None, 0, error)
            return Floor(uuid.uuid4().bytes)

    def _begin_what_is_left(self, floor: Floor) -> Turns:
        """Open the log up to where it breaks off, and note in `_lost` what is known of the rest."""
        if self._lost is not None:
            return Turns(LogState(), floor)
        broken: CorruptBlob | None = None
        try:
            state, opened_by = self._open(floor)
        except CorruptBlob as error:
            broken, opened_by = error, floor
            state = newest_checkpoint(self._objects, floor)
        turns = Turns(state, opened_by)
        try:
            self._catch_up(turns)
        except CorruptBlob as error:
            broken = broken or error
        if broken is not None:
            self._ended = None
            self._lost = lost(self._objects, self._log_id, turns.state.position, broken)
        return turns

    def _catch_up(self, turns: Turns, count: int = 1, ahead: Sequence[Found | None] = ()) -> None:
        """Read the log to its end. `count` is the number of objects to ask for at first.

        `ahead` are the first of them, if the caller has asked for them already.
        """
        with turns.catching:
            # This call has read the objects after `known` up to `read`, and need not read the last one again.
            known = read = turns.confirmed
            while True:
                with turns.lock:
                    position = turns.state.position
                reached = self._floor_seen.checkpoint_position
                names = [object_name(position + 1 + step) for step in range(count)]
                asks = [partial(self._objects.get, name) for name in names]
                received, ahead = ahead or self._objects.together(asks), ()
                for at, found in enumerate(received, position + 1):
                    if found is None:
                        last = at - 2 if known < read == at - 1 else at - 1
                        look = self._look(turns, last, first=min(known, last), end=at - 1)
                        if look is None:
                            break
                        if look[0].checkpoint_position < at:
                            turns.confirm(at - 1)
                            return
                        if reached >= at:
                            raise self._end(gap(self._objects.description, at, reached, self._hint))
                        break
                    added = self._decode(found, at)
                    if not turns.add(added, found.tag):
                        self._check_passed(turns, added)
                        look = None
                        break
                    if at == read + 1:
                        read = at
                else:
                    count = min(2 * count, _READ_AHEAD)
                    continue
                if look is None:
                    self._open_anew(turns)
                    known = read = turns.confirmed
                count = _READ_AHEAD

    def _look(
        self, turns: Turns, last: int, *, first: int | None = None, end: int | None = None
    ) -> tuple[Floor, str] | None:
        """Check that the log still has the objects from `first` to `last`. Return the floor and its tag.

        `first` is the newest object that is known to be part of the log. Return None if the floor has passed
        it; the state must then be opened again. `end` is the last object of the log as far as the caller
        knows. Return None too if a listing shows later objects. All requests run in parallel, so the floor is
        read again before the method reports an object as gone.

        Raises:
            LogRegressed: an object is gone, or is another one.
            CorruptBlob: the log has a gap.
        """
        with turns.lock:
            opened_by = turns.opened_by
            first = min(turns.confirmed, last) if first is None else first
            steps = turns.steps(first, last)
        if any(step.token is None for step in steps):
            return None
        seen, now_s = self._floor_seen, self._clock.monotonic()
        asks: list[Callable[[], Found | list[int] | None]] = [partial(self._objects.get, FLOOR_NAME)]
        if end is not None and (now_s - turns.looked_s > _IDLE_S or len(steps) > _READ_AHEAD):
            asks.append(lambda: list(positions_after(self._objects, first)))
            steps = steps[:_READ_AHEAD]
        asks += [partial(self._objects.get, object_name(step.position), step.tag) for step in steps]
        found, *others = self._objects.together(asks)
        listed = others.pop(0) if len(others) > len(steps) else None
        floor = self._checked_floor(found, seen)
        if floor[0].floor > first and floor[0] != opened_by:
            return None
        for step, other in zip(steps, others, strict=True):
            difference = self._difference(step, other)
            if difference:
                if self._read_floor()[0].floor > step.position:
                    return None
                raise self._end(regressed(self._objects.description, step.position, difference))
        if end is not None:
            if isinstance(listed, list):
                missing, newest = first_missing(first, listed), max([end, *listed[-1:]])
                if missing <= newest:
                    self._check_gap(missing, newest)
                if end < newest or missing <= newest:
                    return None
            turns.looked_s = now_s
        return floor

    def _difference(self, step: ReadObject, found: Found | list[int] | None) -> str:
        """Return what is in place of an object, or "" if the object is there."""
        assert not isinstance(found, list)
        if found is None:
            return "nothing"
        if found.tag == step.tag:
            return ""
        try:
            added = self._decode(found, step.position)
        except CorruptBlob:
            return "an object that can't be read"
        return "" if added.token == step.token else "another object"

    def _check_gap(self, position: int, beyond: int) -> None:
        """Raise unless `position` has an object or is below the floor. Later objects were seen."""
        is_there = self._objects.get(object_name(position)) is not None
        if not is_there and self._read_floor()[0].floor <= position:
            raise self._end(gap(self._objects.description, position, beyond, self._hint))

    def _check_passed(self, turns: Turns, added: LogObject) -> None:
        """Raise unless the floor has passed an object that does not follow the state."""
        with turns.lock:
            last, token = min(added.position, turns.state.position), turns.state.token
        # The causes: this process put an object above a truncated position, another history, or damage.
        if self._look(turns, last) is not None:
            where = self._objects.description
            raise self._end(no_successor(where, added.position, token, added.previous, self._hint))

    def _decode(self, found: Found, position: int) -> LogObject:
        return decode_object(found.data, position, self._log_id, self._objects.description)

    def _read_floor(self) -> tuple[Floor, str]:
        seen = self._floor_seen
        return self._checked_floor(self._objects.get(FLOOR_NAME), seen)

    def _checked_floor(self, found: Found | list[int] | None, seen: Floor) -> tuple[Floor, str]:
        """Check and return a floor that was read after `seen` was known."""
        assert not isinstance(found, list)
        floor = None if found is None else decode_floor(found.data, self._objects.description)
        if found is None or floor is None or floor.log_id != self._log_id:
            raise Determinate(
                f"{self.description} was removed or replaced while it was open",
                hint="stop the processes that use it, restore its objects, and start the processes again",
            ).for_good()
        is_back = floor.floor < seen.floor or floor.checkpoint_position < seen.checkpoint_position
        is_other = floor.checkpoint_position == seen.checkpoint_position and floor != seen
        if is_back or is_other:
            raise self._end(
                LogRegressed(
                    f"{FLOOR_NAME} in {self._objects.description}",
                    f"floor {seen.floor} and checkpoint {seen.checkpoint_position}",
                    f"another checkpoint {floor.checkpoint_position}"
                    if is_other
                    else f"floor {floor.floor} and checkpoint {floor.checkpoint_position}",
                )
            )
        self._see(floor)
        return floor, found.tag

    def _see(self, floor: Floor) -> None:
        """Remember the newest floor, which never goes back."""
        if floor.checkpoint_position > self._floor_seen.checkpoint_position:
            self._floor_seen = floor

    def _open_anew(self, turns: Turns) -> None:
        """Take the state of the newest checkpoint, unless it is before the confirmed position."""
        state, opened_by = self._open(self._floor_seen)
        with turns.lock:
            confirmed = turns.confirmed
            known, found = turns.state.token_at(confirmed), state.token_at(confirmed)
        if state.position < confirmed:
            return
        if known is not None and found is not None and known != found:
            raise self._end(regressed(self._objects.description, confirmed, "another object"))
        turns.replace(state, opened_by, confirmed=confirmed)

    def _open(self, floor: Floor) -> tuple[LogState, Floor]:
        """Return the state in the newest checkpoint, from that of `floor` on, and the floor that names it."""
        while floor.checkpoint:
            found = self._objects.get(floor.checkpoint)
            if found is not None:
                return decode_checkpoint(found.data, floor, self._objects.description), floor
            newer, _ = self._read_floor()
            if newer == floor:
                key = f"{floor.checkpoint} in {self._objects.description}"
                raise CorruptBlob.missing(key, "it is the newest checkpoint of the log", hint=self._hint)
            floor = newer
        return LogState(), floor

    def _open_with_more(self, floor: Floor) -> tuple[tuple[LogState, Floor], Sequence[Found | None]]:
        """Like `_open`, with the objects that follow, which are read at the same time."""
        opened: list[tuple[LogState, Floor]] = []
        first = floor.checkpoint_position + 1
        asks: list[Callable[[], Found | None]] = [lambda: opened.append(self._open(floor))]
        asks += [partial(self._objects.get, object_name(first + ahead)) for ahead in range(_READ_AHEAD)]
        _, *found = self._objects.together(asks)
        is_next = opened[0][0].position + 1 == first
        return opened[0], found if is_next else ()

    def _make_log(self, *, create: bool) -> Found:
        left = self._objects.first_names(LOG_FOLDER)
        if left and self._objects.get(FLOOR_NAME) is None:
            key = f"{FLOOR_NAME} in {self._objects.description}"
            raise CorruptBlob.missing(key, "the log has objects", hint=self._hint)
        if not create:
            raise NoLocation(
                f"there is no {self.description}",
                hint="check the URL; the first client that writes makes the log",
            )
        data = encode_floor(Floor(uuid.uuid4().bytes))
        try:
            if self._objects.create(FLOOR_NAME, data):
                self._check_conditions(data)
        except Indeterminate as error:
            raise StoreUnreachable(str(error), hint="try again") from error
        found = self._objects.get(FLOOR_NAME)
        assert found is not None
        return found

    def _check_conditions(self, data: bytes) -> None:
        """Refuse a service that ignores conditions: its writers would overwrite each other's steps."""
        if self._objects.create(FLOOR_NAME, data) or self._objects.replace(FLOOR_NAME, data, NO_TAG):
            self._objects.delete([FLOOR_NAME])
            raise StoreUnreachable(
                f"{self._objects.description} can't hold a log: its service ignores conditional puts",
                hint="use a service that supports If-None-Match and If-Match, or put the consensus elsewhere",
            )

    def _is_due(self, state: LogState) -> bool:
        """Whether a checkpoint is due: enough objects and bytes have come since the last one."""
        is_cheap = state.live_bytes <= max(2 * state.new_bytes, _SMALL_BYTES)
        return state.position % self._checkpoint_every == 0 and is_cheap

    def _checkpoint(self, turns: Turns, state: LogState, floor: Floor, tag: str) -> None:
        """Write a checkpoint and delete objects below its floor. After a failure the next one does it."""
        name = checkpoint_name(state.position, uuid.uuid4().hex)
        keep_from = max(floor.floor, floor.checkpoint_position, 1)
        newer = Floor(self._log_id, keep_from, name, state.position)
        try:
            made = self._objects.create(name, encode_checkpoint(state, self._log_id))
            # A floor that went back may have the same tag as the one that was read.
            is_log = self._look(turns, state.position, first=state.position) is not None
            if not is_log or not self._objects.replace(FLOOR_NAME, encode_floor(newer), tag):
                # Another process was faster, so the condition on this floor can't hold any more.
                self._objects.delete([name])
                return
            self._see(newer)
            self._delete_older(newer, made)
        except StorageError:
            # Nothing is lost: the checkpoint is unused, or it is used and some deletions are missing.
            return

    def _delete_older(self, floor: Floor, tag: str) -> None:
        """Delete the objects and checkpoints older than `floor`. `tag` belongs to the floor's checkpoint."""
        least = {
            LOG_FOLDER: object_name(floor.floor),
            CHECKPOINT_FOLDER: checkpoint_name(floor.checkpoint_position, ""),
        }

        def older(folder: str) -> list[str]:
            return [name for name in self._objects.first_names(folder) if name < least[folder]]

        while any(doomed := self._objects.together([partial(older, folder) for folder in least])):
            # If the store went back to an older state, its log consists of these objects.
            checks = [
                lambda: self._read_floor()[0] == floor,
                lambda: self._objects.get(floor.checkpoint, tag) is not None,
            ]
            if not all(self._objects.together(checks)):
                return
            self._objects.together([partial(self._objects.delete, names) for names in doomed if names])
            if all(len(names) < MANY for names in doomed):
                return
