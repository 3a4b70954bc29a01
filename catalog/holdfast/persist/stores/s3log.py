# ruff: noqa: D102 - the trait documents its methods
"""Consensus on an object store alone: one log for all keys of a location, an object per step.

Invariants:

- Object `p` is created with If-None-Match by a process that has read all before it, so what it checked holds
  at the commit point, for any number of keys. It names the token of object `p - 1`.
- The floor is made durable before an object below it is deleted, and never goes back. So what was found at
  the end of the log is an answer only if the floor, read afterwards, is not beyond it; and a put at `p` is a
  success only if the floor, read afterwards, is not above `p`. A sleeper may put an object where one was
  deleted: nobody who looks at the floor takes it for the log, and no object of the log names its token.
- The store may return to an older state at any moment: a bucket is restored, objects are deleted. A process
  that finds the end of the log, or has put an object, looks whether the objects before are still there. These
  requests run beside that for the floor. An object that is not confirmed proves nothing, whoever put it: it
  may lie over a gap. So the look reaches back to the newest object that is confirmed.
- If an object is gone, or is another one, and the floor has not passed it, that is `LogRegressed`; a floor
  below one that was seen is too. A log that goes on beyond its end has a gap: `CorruptBlob`. A process lists
  what lies beyond the end when it opens the log, and when it has not looked for `_IDLE_S`. It also finds a
  gap below the newest checkpoint. After either error every call raises it. Nothing is deleted, not even an
  object that was put over a gap.
- An object can be put over a gap, because the look comes after the put. It is `Indeterminate`, and not
  acknowledged: it would be of the log if the lost objects came back. New processes find the gap until a
  person decides.
- Three losses stay unseen for a while. One that happens after the last look is found by the next one. A
  process that is behind and looks all the time, and loses the very next object while later ones stay, takes
  that for the end until it meets the later ones, is idle, or the next checkpoint is written. An object that
  is lost below the newest one is found by whoever opens the log or runs `check_integrity`, not by those who
  have read it.
- A put of unknown outcome is settled by its token: object `p` is sent again until somebody's is there. One
  that the floor has passed is looked for among the tokens of the checkpoint. Each attempt has a token of its
  own: an earlier one that lands late, in a store that went back, must not bring back the object that is
  known.
- A step is made by one thread of a process at a time, for all that wait: their commands share one object,
  each with its own answer. The floor is read beside the next step, so a location makes one step per put.
- All entries that are left are in the memory of every process that has the store open.
- A checkpoint is written by whose object falls on it, of what is known to be the log.
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
from holdfast.persist.clock import Clock
from holdfast.persist.stores.logcodec import (
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
from holdfast.persist.stores.loglosses import (
    HINT,
    LOG_CAUSES,
    first_missing,
    gap,
    lost,
    newest_checkpoint,
    no_successor,
    positions_after,
    regressed,
)
from holdfast.persist.stores.logrestart import last_position, next_beginning, restarted
from holdfast.persist.stores.logstate import Append, Command, Floor, LogObject, LogState, Truncate, draft
from holdfast.persist.stores.logturn import Request, Step, Turns, settle
from holdfast.persist.stores.objects import NO_TAG, Found, Objects
from holdfast.persist.stores.retry import TimeLeft
from holdfast.persist.stores.traits import (
    NOTHING_KNOWN,
    Consensus,
    Entry,
    Expect,
    Head,
    Lost,
    Put,
    Row,
    check_commands,
    check_key,
    check_scan,
)

T = TypeVar("T")

CHECKPOINT_EVERY: Final = 256
"""Objects between checkpoints: what a newcomer has to replay, and what a slow reader may be behind."""
_SMALL_BYTES: Final = 64 * 1024
"""A larger state is written again only when half of it came since."""
_READ_AHEAD: Final = 16
_WAITS_S: Final = (0.1, 0.4)
"""The longest waits before an object of unknown outcome is sent the second time and the third."""
_PATIENCE_S: Final = 30.0
"""For how long other processes may be faster."""
_IDLE_S: Final = 10.0
"""After how long without a look the next one lists what lies beyond the end of the log."""


class _Sent(NamedTuple):
    """An object that was put, the tag of its version, and the tokens of all attempts to put it."""

    added: LogObject
    tag: str
    tokens: frozenset[bytes]


class S3LogConsensus(Consensus):
    """The logs in `objects`, whose log is made where `create` is set and there is none.

    Raises `StoreUnreachable` for a missing log, `CorruptBlob` and `VersionTooNew` for one that can't be read.
    With `read_only` nothing is written. With `for_recovery` a log that can't be read, or has a gap, is opened
    up to there: `lost` says why it ends, and nothing but `restart` changes it.
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
    ) -> None:
        self._objects: Final = objects
        self._read_only: Final = read_only
        self._clock: Final = clock or Clock()
        self._checkpoint_every: Final = checkpoint_every
        self._closed = False
        # Whether the log was moved out of the reach of those who knew it.
        self._is_recovering = False
        # Why all calls fail: the log lost what this process knows.
        self._ended: CorruptBlob | None = None
        self._lost: Lost | None = None
        # The tag of a floor that recovery can't read, "" if there is none.
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
        return bool(self._submit(Append(copied, tuple(expect))))

    def truncate(self, key: str, seqno: int, known: Row | None = None) -> int:
        check_key(key)
        return int(self._submit(Truncate(key, seqno, known)))

    def lost(self) -> Lost | None:
        return self._lost

    def check_integrity(self) -> None:
        turns = self._refresh()
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
        turns = self._refresh()
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
        with suppress(StorageError):  # what is left is below the floor, and goes with the next checkpoint
            self._delete_older(newer, made)
        return True

    def close(self) -> None:
        self._closed = True
        self._objects.close()

    def _submit(self, command: Command) -> bool | int:
        """Wait for an object that holds the command, made by this thread or another, and its answer."""
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
            raise NotWritable(f"{self.description} was opened for reading only")
        if self._lost is not None and not restarts:
            raise Determinate(f"{self.description} was opened for recovery alone")

    def _check_not_ended(self) -> None:
        found = self._ended
        if isinstance(found, LogRegressed):
            raise found.again()
        if found is not None:
            raise CorruptBlob(found.key, found.expected, found.actual, hint=found.hint)

    def _end(self, error: CorruptBlob) -> CorruptBlob:
        """Let every call raise this error from now on."""
        self._ended = error
        return error

    def _lead(self, turns: Turns, group: Sequence[Request]) -> None:
        with turns.passed_on():
            step = self._step(turns, group)
        if step is not None:
            self._confirm(turns, *step)

    def _step(
        self, turns: Turns, group: Sequence[Request]
    ) -> tuple[_Sent, dict[Request, bool | int], LogState | None] | None:
        """Put the next object; it, the answers if it is of the log, and the state where a checkpoint is due.

        None where no command holds: those have their answers.
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
                        "an object that can be put, as there is none",
                        "that the store refuses it although nothing has moved",
                    )
                raise Determinate(f"other processes wrote to {self.description} for {_PATIENCE_S:g} s")

    def _give_way(self, turns: Turns) -> None:
        """Who lost to this process has to read its object first: without a wait it would lose for ever."""
        if turns.is_contended:
            self._clock.sleep(random.uniform(0, turns.put_s))  # noqa: S311 - no secret

    def _create(self, turns: Turns, added: LogObject) -> _Sent | None:
        """Put an object; None if another one is there, which the state has then."""
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
        """Whether the log has an object that may have been put; the state reaches to it or beyond."""
        position = sent.added.position
        with turns.lock:
            token = turns.state.token_at(position)
        if token is None:
            raise Indeterminate(f"{self.description} was truncated before a put at {position} returned")
        return token in sent.tokens

    def _confirm(
        self, turns: Turns, sent: _Sent, answers: dict[Request, bool | int], due: LogState | None
    ) -> None:
        added = sent.added
        try:
            look = self._look(turns, added.position - 1, end=added.position)
            if look is not None and look[0].checkpoint_position >= added.position:
                # Others took the log on from this object, or from one that was lost: the checkpoint shows it.
                self._open_anew(turns)
                look = None
            if look is None:
                self._catch_up(turns)
            is_in = look is not None or self._holds(turns, sent)
        except StorageError as error:
            raise Indeterminate(f"a put to {self.description} could not be confirmed: {error}") from error
        if not is_in:
            raise Determinate(
                f"{self.description} was truncated beyond {added.position} before it was put,"
                " or lost what was there"
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
        """What `look` sees in the log as of some point since the call."""
        while True:
            turns = self._refresh()
            with turns.lock:
                position, is_known = turns.state.position, turns.confirmed >= turns.state.position
                seen = look(turns.state)
            # A thread of this process may have put an object since the end was found, perhaps over a gap.
            if is_known or self._lost is not None or self._look(turns, position) is not None:
                return seen

    def _refresh(self) -> Turns:
        """Bring the state to the end of the log, as of some point since the call."""
        turns = self._own()
        if self._lost is not None:
            return turns
        asked = turns.tick()
        with turns.reading:
            if turns.read_at < asked:
                began = turns.tick()
                self._catch_up(turns)
                turns.read_at = began
        return turns

    def _own(self) -> Turns:
        """What belongs to this process: a child of a fork begins anew, whatever its parent's threads held."""
        if self._closed:
            raise Determinate(f"{self.description} is closed").for_good()
        self._check_not_ended()
        if self._turns.pid != os.getpid():
            self._turns = self._begin(self._read_floor()[0])
        return self._turns

    def _begin(self, floor: Floor) -> Turns:
        turns = Turns(*self._open(floor))
        try:
            self._catch_up(turns)
        except LogRegressed as error:
            # It has lost what its checkpoint or its newest objects say; nobody's handles end.
            raise CorruptBlob(error.key, error.expected, error.actual, hint=HINT) from None
        return turns

    def _first_floor(self, *, create: bool, bad: bool) -> Floor:
        """The floor as it is found, or made; one of another log if it can't be read, where that is `bad`."""
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
        """The log up to where it breaks off, and in `_lost` what is known of the rest."""
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

    def _catch_up(self, turns: Turns) -> None:
        with turns.catching:
            count = 1
            # This call has read the objects after `known` up to `read`: it need not read the last again.
            known = read = turns.confirmed
            while True:
                with turns.lock:
                    position = turns.state.position
                reached = self._floor_seen.checkpoint_position
                names = [object_name(position + 1 + ahead) for ahead in range(count)]
                asks = [partial(self._objects.get, name) for name in names]
                for at, found in enumerate(self._objects.together(asks), position + 1):
                    if found is None:
                        last = at - 2 if known < read == at - 1 else at - 1
                        look = self._look(turns, last, first=min(known, last), end=at - 1)
                        if look is None:
                            break
                        if look[0].checkpoint_position < at:
                            turns.confirm(at - 1)
                            return
                        if reached >= at:
                            raise self._end(gap(self._objects.description, at, reached))
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
        """The floor and its tag, if the log still has the objects of the state from `first` to `last`.

        `first` is the newest object that is known to be of the log. None if the floor has passed it: then
        the state must be opened anew. `end` is the last object of the log as far as the caller knows; None
        too if later ones are listed. All requests run side by side, so the floor is read again before an
        object is said to be gone.

        Raises:
            LogRegressed: an object is gone, or is another one.
            CorruptBlob: the log goes on after a gap.
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

    def _difference(self, step: Step, found: Found | list[int] | None) -> str:
        """What is there in place of an object, "" if it is there."""
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
        """Raise unless there is an object at `position`, or the floor has passed it; later ones were seen."""
        is_there = self._objects.get(object_name(position)) is not None
        if not is_there and self._read_floor()[0].floor <= position:
            raise self._end(gap(self._objects.description, position, beyond))

    def _check_passed(self, turns: Turns, added: LogObject) -> None:
        """Raise unless the floor has passed an object that doesn't follow the state."""
        with turns.lock:
            last, token = min(added.position, turns.state.position), turns.state.token
        # Our object before it was put over a gap of what was truncated, another history, or damage.
        if self._look(turns, last) is not None:
            where = self._objects.description
            raise self._end(no_successor(where, added.position, token, added.previous))

    def _decode(self, found: Found, position: int) -> LogObject:
        return decode_object(found.data, position, self._log_id, self._objects.description)

    def _read_floor(self) -> tuple[Floor, str]:
        seen = self._floor_seen
        return self._checked_floor(self._objects.get(FLOOR_NAME), seen)

    def _checked_floor(self, found: Found | list[int] | None, seen: Floor) -> tuple[Floor, str]:
        """The floor that was read after `seen` had been seen."""
        assert not isinstance(found, list)
        floor = None if found is None else decode_floor(found.data, self._objects.description)
        if found is None or floor is None or floor.log_id != self._log_id:
            raise Determinate(
                f"{self.description} was removed or replaced while it was open",
                hint="stop the processes that use it, put the right objects in place and start them again",
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
                    causes=LOG_CAUSES,
                )
            )
        self._see(floor)
        return floor, found.tag

    def _see(self, floor: Floor) -> None:
        """Remember the newest floor: it never goes back."""
        if floor.checkpoint_position > self._floor_seen.checkpoint_position:
            self._floor_seen = floor

    def _open_anew(self, turns: Turns) -> None:
        """Take the state of the newest checkpoint, if that is not before what is known to be of the log."""
        state, opened_by = self._open(self._floor_seen)
        with turns.lock:
            confirmed = turns.confirmed
            known, found = turns.state.token_at(confirmed), state.token_at(confirmed)
        if state.position < confirmed:
            return
        if known is not None and found is not None and known != found:
            raise self._end(regressed(self._objects.description, confirmed, "another object"))
        turns.replace(state, opened_by)

    def _open(self, floor: Floor) -> tuple[LogState, Floor]:
        """The state in the newest checkpoint at or after that of `floor`, and the floor that names it."""
        while floor.checkpoint:
            found = self._objects.get(floor.checkpoint)
            if found is not None:
                return decode_checkpoint(found.data, floor, self._objects.description), floor
            newer, _ = self._read_floor()
            if newer == floor:
                key = f"{floor.checkpoint} in {self._objects.description}"
                raise CorruptBlob(key, "a checkpoint", "nothing", hint=HINT)
            floor = newer
        return LogState(), floor

    def _make_log(self, *, create: bool) -> Found:
        left = self._objects.first_names(LOG_FOLDER)
        if left and self._objects.get(FLOOR_NAME) is None:
            raise CorruptBlob(
                f"{FLOOR_NAME} in {self._objects.description}", "the floor of its log", "nothing", hint=HINT
            )
        if not create:
            raise NoLocation(
                f"there is no {self.description}",
                hint="check the URL; it is made by the first client that writes",
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
        """Refuse a service that heeds no conditions: writers would overwrite one another's steps."""
        if self._objects.create(FLOOR_NAME, data) or self._objects.replace(FLOOR_NAME, data, NO_TAG):
            self._objects.delete([FLOOR_NAME])
            raise StoreUnreachable(
                f"{self._objects.description} can't hold a log: its service ignores conditional puts",
                hint="use a service that knows If-None-Match and If-Match, or a consensus store elsewhere",
            )

    def _is_due(self, state: LogState) -> bool:
        """Whether this object is one with a checkpoint: some way after the last one, in number and bytes."""
        is_cheap = state.live_bytes <= max(2 * state.new_bytes, _SMALL_BYTES)
        return state.position % self._checkpoint_every == 0 and is_cheap

    def _checkpoint(self, turns: Turns, state: LogState, floor: Floor, tag: str) -> None:
        """Write a checkpoint and delete what is older than the one before; what fails waits for the next."""
        name = checkpoint_name(state.position, uuid.uuid4().hex)
        keep_from = max(floor.floor, floor.checkpoint_position, 1)
        newer = Floor(self._log_id, keep_from, name, state.position)
        try:
            made = self._objects.create(name, encode_checkpoint(state, self._log_id))
            # A floor that went back may have the tag of the one that was read.
            is_log = self._look(turns, state.position, first=state.position) is not None
            if not is_log or not self._objects.replace(FLOOR_NAME, encode_floor(newer), tag):
                # Another process was faster; this floor can't be put over its any more.
                self._objects.delete([name])
                return
            self._see(newer)
            self._delete_older(newer, made)
        except StorageError:
            # Nothing is lost: what was written is unused, or used and followed by too little deletion.
            return

    def _delete_older(self, floor: Floor, tag: str) -> None:
        """Delete what is older than `floor`, whose checkpoint has this tag."""
        for folder, least in (
            (LOG_FOLDER, object_name(floor.floor)),
            (CHECKPOINT_FOLDER, checkpoint_name(floor.checkpoint_position, "")),
        ):
            while doomed := [name for name in self._objects.first_names(folder) if name < least]:
                # If the store went back to an older state, its log is made of these.
                if self._read_floor()[0] != floor or self._objects.get(floor.checkpoint, tag) is None:
                    return
                self._objects.delete(doomed)
