# ruff: noqa: D102 - the trait documents its methods
"""Consensus on an object store alone: one log for all keys of a location, an object per step.

Invariants:

- Object `p` is created with If-None-Match by a process that has read all before it, so what it checked holds
  at the commit point, for any number of keys. It names the token of object `p - 1`.
- The floor is made durable before an object below it is deleted, and never goes back. So what was found at
  the end of the log is an answer only if the floor, read afterwards, is not beyond it; and a put at `p` is a
  success only if the floor, read afterwards, is not above `p`. A sleeper may put an object where one was
  deleted: nobody who looks at the floor takes it for the log, and no object of the log names its token.
- A put of unknown outcome is settled by its token: object `p` is sent again as it is, until somebody's is
  there. One that the floor has passed is looked for among the tokens of the checkpoint.
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
from typing import Final, TypeVar

from holdfast.errors import (
    CorruptBlob,
    Determinate,
    Indeterminate,
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
from holdfast.persist.stores.logrestart import last_position, next_beginning, restarted
from holdfast.persist.stores.logstate import Append, Command, Floor, LogObject, LogState, Truncate, draft
from holdfast.persist.stores.logturn import Request, Turns, settle
from holdfast.persist.stores.objects import NO_TAG, Found, Objects
from holdfast.persist.stores.retry import TimeLeft
from holdfast.persist.stores.traits import (
    NOTHING_KNOWN,
    Consensus,
    Entry,
    Expect,
    Head,
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


class S3LogConsensus(Consensus):
    """The logs in `objects`, whose log is made where `create` is set and there is none.

    Raises `StoreUnreachable` for a missing log, `CorruptBlob` and `VersionTooNew` for one that can't be read.
    With `read_only` nothing is written.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        create: bool = True,
        read_only: bool = False,
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
        try:
            found = self._objects.get(FLOOR_NAME)
            if found is None:
                found = self._make_log(create=create and not read_only)
            floor = decode_floor(found.data, objects.description)
            self._log_id: Final = floor.log_id
            self._turns = self._begin(floor)
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

    def check_restart(self) -> None:
        pass

    def restart(self, key: str, seqno: int, data: bytes) -> bool:
        check_commands([Put(key, seqno, data)], ())
        self._check_writable()
        turns = self._refresh()
        floor, tag = self._read_floor()
        with turns.lock:
            if turns.state.head(key) >= seqno:
                return False
            position = turns.state.position + 1
            if not self._is_recovering:
                position = next_beginning(max(position, floor.floor, last_position(self._objects)))
            state = restarted(turns.state, key, seqno, data, position=position)
        name = checkpoint_name(position, uuid.uuid4().hex)
        newer = Floor(self._log_id, position + 1, name, position)
        self._objects.create(name, encode_checkpoint(state, self._log_id))
        if not self._objects.replace(FLOOR_NAME, encode_floor(newer), tag):
            self._objects.delete([name])
            return False
        turns.replace(state)
        self._is_recovering = True
        with suppress(StorageError):  # what is left is below the floor, and goes with the next checkpoint
            self._delete_older(newer)
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

    def _check_writable(self) -> None:
        if self._read_only:
            raise NotWritable(f"{self.description} was opened for reading only")

    def _lead(self, turns: Turns, group: Sequence[Request]) -> None:
        with turns.passed_on():
            step = self._step(turns, group)
        if step is not None:
            self._confirm(turns, *step)

    def _step(
        self, turns: Turns, group: Sequence[Request]
    ) -> tuple[LogObject, dict[Request, bool | int], LogState | None] | None:
        """Put the next object; it, the answers if it is of the log, and the state where a checkpoint is due.

        None where no command holds: those have their answers.
        """
        is_newest = False
        left = TimeLeft(self._clock, _PATIENCE_S)
        waiting = list(group)
        self._give_way(turns)
        while True:
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
            if self._create(turns, added):
                with turns.lock:
                    turns.won(added)
                    due = self._is_due(turns.state) and turns.state.position == added.position
                    return added, answers, turns.state.copy() if due else None
            is_newest = True
            if left.after_attempt() < 0:
                raise Determinate(f"other processes wrote to {self.description} for {_PATIENCE_S:g} s")

    def _give_way(self, turns: Turns) -> None:
        """Who lost to this process has to read its object first: without a wait it would lose for ever."""
        if turns.is_contended:
            self._clock.sleep(random.uniform(0, turns.put_s))  # noqa: S311 - no secret

    def _create(self, turns: Turns, added: LogObject) -> bool:
        """Whether the object is in the log; where it isn't, the state has what is there instead."""
        name, data = object_name(added.position), encode_object(added)
        waits = list(_WAITS_S)
        unknown: Indeterminate | None = None
        while True:
            began = self._clock.monotonic()
            try:
                created = self._objects.create(name, data)
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
        if created:
            return True
        try:
            self._catch_up(turns)
        except StorageError:
            if unknown is not None:
                raise unknown from None
            raise
        return unknown is not None and self._holds(turns, added)

    def _holds(self, turns: Turns, added: LogObject) -> bool:
        """Whether the log has an object that may have been put; the state reaches to it or beyond."""
        with turns.lock:
            token = turns.state.token_at(added.position)
        if token is None:
            raise Indeterminate(f"{self.description} was truncated before a put at {added.position} returned")
        return token == added.token

    def _confirm(
        self, turns: Turns, added: LogObject, answers: dict[Request, bool | int], due: LogState | None
    ) -> None:
        try:
            floor, tag = self._read_floor()
            is_in = floor.floor <= added.position
            if not is_in:
                self._catch_up(turns)
                is_in, due = self._holds(turns, added), None
        except StorageError as error:
            raise Indeterminate(f"a put to {self.description} could not be confirmed: {error}") from error
        if not is_in:
            raise Determinate(f"{self.description} was truncated beyond {added.position} before it was put")
        turns.confirm(added.position)
        for request, answer in answers.items():
            request.answer.set_result(answer)
        with turns.lock:
            turns.state.note_checkpoint(floor.checkpoint_position if due is None else added.position)
        if due is not None and floor.checkpoint_position < added.position:
            self._checkpoint(due, floor, tag)

    def _read(self, look: Callable[[LogState], T]) -> T:
        """What `look` sees in the log as of some point since the call."""
        while True:
            turns = self._refresh()
            with turns.lock:
                position, is_known = turns.state.position, turns.confirmed >= turns.state.position
                seen = look(turns.state)
            # A thread of this process may have put an object since the end was found, perhaps over a gap.
            if is_known or self._read_floor()[0].floor <= position:
                return seen

    def _refresh(self) -> Turns:
        """Bring the state to the end of the log, as of some point since the call."""
        turns = self._own()
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
            raise Determinate(f"{self.description} is closed")
        if self._turns.pid != os.getpid():
            self._turns = self._begin(self._read_floor()[0])
        return self._turns

    def _begin(self, floor: Floor) -> Turns:
        turns = Turns(self._open(floor))
        self._catch_up(turns)
        return turns

    def _catch_up(self, turns: Turns) -> None:
        with turns.catching:
            count = 1
            while True:
                with turns.lock:
                    state = turns.state
                    position = state.position
                names = [object_name(position + 1 + ahead) for ahead in range(count)]
                for ahead, found in enumerate(self._objects.get_each(names), 1):
                    if found is None:
                        floor, _ = self._read_floor()
                        if floor.floor <= position + ahead:
                            turns.confirm(position + ahead - 1)
                            return
                        break
                    added = self._decode(found, position + ahead)
                    if not turns.add(added):
                        # Our object before it was put over a gap, or the log is damaged.
                        floor, _ = self._read_floor()
                        if floor.floor < position + ahead:
                            raise CorruptBlob(
                                f"{object_name(added.position)} in {self._objects.description}",
                                f"predecessor {state.token.hex()}",
                                added.previous.hex(),
                            )
                        break
                else:
                    count = min(2 * count, _READ_AHEAD)
                    continue
                turns.replace(self._open(floor))
                count = _READ_AHEAD

    def _decode(self, found: Found, position: int) -> LogObject:
        return decode_object(found.data, position, self._log_id, self._objects.description)

    def _read_floor(self) -> tuple[Floor, str]:
        found = self._objects.get(FLOOR_NAME)
        floor = None if found is None else decode_floor(found.data, self._objects.description)
        if found is None or floor is None or floor.log_id != self._log_id:
            raise Determinate(
                f"{self.description} was removed or replaced while it was open",
                hint="stop the processes that use it, put the right objects in place and start them again",
            )
        return floor, found.tag

    def _open(self, floor: Floor) -> LogState:
        """The state in the newest checkpoint at or after that of `floor`."""
        while floor.checkpoint:
            found = self._objects.get(floor.checkpoint)
            if found is not None:
                return decode_checkpoint(found.data, floor, self._objects.description)
            newer, _ = self._read_floor()
            if newer == floor:
                raise CorruptBlob(
                    f"{floor.checkpoint} in {self._objects.description}", "a checkpoint", "nothing"
                )
            floor = newer
        return LogState()

    def _make_log(self, *, create: bool) -> Found:
        if not create:
            raise NoLocation(
                f"there is no {self.description}",
                hint="check the URL; it is made by the first client that writes",
            )
        left = self._objects.first_names(LOG_FOLDER)
        if left and self._objects.get(FLOOR_NAME) is None:
            raise CorruptBlob(
                f"{FLOOR_NAME} in {self._objects.description}", "the floor of its log", "nothing"
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

    def _checkpoint(self, state: LogState, floor: Floor, tag: str) -> None:
        """Write a checkpoint and delete what is older than the one before; what fails waits for the next."""
        name = checkpoint_name(state.position, uuid.uuid4().hex)
        keep_from = max(floor.floor, floor.checkpoint_position, 1)
        newer = Floor(self._log_id, keep_from, name, state.position)
        try:
            self._objects.create(name, encode_checkpoint(state, self._log_id))
            if not self._objects.replace(FLOOR_NAME, encode_floor(newer), tag):
                # Another process was faster; this floor can't be put over its any more.
                self._objects.delete([name])
                return
            self._delete_older(newer)
        except StorageError:
            # Nothing is lost: what was written is unused, or used and followed by too little deletion.
            return

    def _delete_older(self, floor: Floor) -> None:
        self._delete_below(LOG_FOLDER, object_name(floor.floor))
        self._delete_below(CHECKPOINT_FOLDER, checkpoint_name(floor.checkpoint_position, ""))

    def _delete_below(self, folder: str, least: str) -> None:
        while doomed := [name for name in self._objects.first_names(folder) if name < least]:
            self._objects.delete(doomed)
