"""Rows and rollups with a fitting checksum and nonsense inside: an answer or an error of ours, whoever reads.

Each field of each message is set to extreme values, one at a time. The checksum tells nothing then. Reading,
writing, verifying, recovering and taking the lock must end in an answer or a `HoldfastError`.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from typing import Any

import pytest
from google.protobuf.message import Message

from holdfast._pb import persist_pb2 as pb
from holdfast.errors import HoldfastError
from holdfast.persist import PersistClient, PersistConfig
from holdfast.persist.admin.recover import Recovery
from holdfast.persist.admin.sweep import sweep
from holdfast.persist.admin.verify import of_store, verify, without_log
from holdfast.persist.state.codec import DIFF_MAGIC, ROLLUP_MAGIC, seal_frame
from holdfast.persist.state.lock import LOCK_KEY, LOCK_MAGIC
from holdfast.persist.stores import Location, MemoryBlob, MemoryConsensus
from holdfast.persist.stores import Put as LogPut
from unit.persist.open_stores import SCHEMA, SHARD, HandClock, Stores, rows
from unit.persist.test_hostile_bytes import FRAME_HEADER, Stored

QUICK = PersistConfig(retry_deadline_s=0.0, maintenance="inline", rollup_every=4, hostname="h")


@cache
def stored() -> Stored:
    """A shard with a rollup, a truncated log, inline and Parquet parts, all handles, and a write lock."""
    stores = Stores()
    settings = {"rollup_every": 4, "compaction_fanin": 3, "gc_grace_s": 1e6, "hostname": "h"}
    inline, large = stores.open(**settings), stores.open(**settings, inline_max_bytes=0)
    for time in range(6):
        client = large if time in (0, 4) else inline
        client.writer(SHARD, SCHEMA, purpose="w").compare_and_append(rows(time), time, time + 1)
        if time == 3:
            inline.critical_since(SHARD, purpose="c")
            inline.maintain(SHARD)
    inline.reader(SHARD, purpose="r")
    with inline.exclusive("job"):
        pass
    blobs, logs = stores.stored()
    return Stored({key: data for key, data in blobs.items() if data is not None}, logs)


def messages() -> Iterator[tuple[str, Message, bytes, Callable[[bytes], Stored]]]:
    kinds: dict[bytes, Callable[[], Message]] = {
        DIFF_MAGIC: pb.StateDiff,
        ROLLUP_MAGIC: pb.ShardState,
        LOCK_MAGIC: pb.ExclusiveLock,
    }
    for name, data, put in stored().places():
        if data[:4] in kinds:
            message = kinds[data[:4]]()
            message.ParseFromString(data[FRAME_HEADER:])
            yield name, message, data[:4], put


EXTREMES: dict[str, list[Any]] = {
    "int": [0, 1, 2**31 - 1, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63)],
    "str": ["", "x", "/", "..", "\0", "a" * 5000, SHARD + "/v1", "s/w/p"],
    "bytes": [b"", b"\xff" * 9],
    "bool": [False, True],
}


Field = tuple[str, Message, str, Any]
"""Its path, the message that has it, its name, and its value: None for messages."""


def fields(message: Message, path: str = "") -> Iterator[Field]:
    """Everything that is set in a message, at any depth."""
    for field, value in message.ListFields():
        here = f"{path}.{field.name}"
        if isinstance(value, Message):
            yield from fields(value, here)
            yield here, message, field.name, None
        elif isinstance(value, bool | int | str | bytes):
            yield here, message, field.name, value
        elif value and isinstance(value[0], Message):
            for number, each in enumerate(value):
                yield from fields(each, f"{here}[{number}]")
            yield here, message, field.name, None


def repeat(holder: Message, name: str) -> None:
    values = getattr(holder, name)
    if not isinstance(values, Message):
        values.add().CopyFrom(values[0])


def forged() -> Iterator[tuple[str, Stored]]:
    """All that one changed field makes."""
    for name, sound, magic, put in messages():
        for number, (path, _, _, value) in enumerate(fields(sound)):
            changes: dict[str, Callable[[Message, str], None]]
            if value is None:
                changes = {"missing": lambda holder, field: holder.ClearField(field), "twice": repeat}
            else:
                changes = {
                    f"= {str(extreme)[:30]!r}": partial(_set, value=extreme)
                    for extreme in EXTREMES[type(value).__name__]
                }
            for what, change in changes.items():
                message = type(sound)()
                message.CopyFrom(sound)
                _, holder, field, _ = next(islice(fields(message), number, None))
                try:
                    change(holder, field)
                except ValueError:
                    continue  # outside the type of the field: no bytes can say it
                yield f"{name} {path} {what}", put(seal_frame(magic, message.SerializeToString()))


def _set(holder: Message, field: str, *, value: Any) -> None:
    setattr(holder, field, value)


def acts(damaged: Stored) -> Iterator[tuple[str, Callable[[], object]]]:
    """What a process may do with the location, each time from the start."""

    def stores() -> Location:
        blob, consensus = MemoryBlob(), MemoryConsensus()
        for key, data in damaged.blobs.items():
            blob.put(key, data)
        for key, log in damaged.logs.items():
            first = log[0].seqno
            if first > 1:
                consensus.restart(key, first, log[0].data)
            for entry in log if first == 1 else log[1:]:
                assert consensus.compare_and_set([LogPut(key, *entry)])
        return Location.of(blob, consensus, create=False)

    def client() -> PersistClient:
        return PersistClient(stores(), config=QUICK, clock=HandClock())

    def read() -> None:
        with client() as opened:
            reader = opened.reader(SHARD, purpose="test")
            upper = reader.upper()
            reader.snapshot(upper - 1).to_table()
            list(reader.snapshot(upper - 1))
            opened.inspect(SHARD).to_json()

    def write() -> None:
        with client() as opened:
            upper = opened.recent_upper(SHARD)
            writer = opened.writer(SHARD, SCHEMA, purpose="test")
            writer.compare_and_append(rows(1), upper, upper + 1)
            opened.maintain(SHARD)

    def audit() -> None:
        with client() as opened:
            of_store(opened)
            verify(opened, SHARD)
            without_log(opened)
            list(sweep(opened))

    def recover() -> None:
        location = stores()
        Recovery(location.blob, location.consensus, config=QUICK, clock=HandClock()).run(restored=True)

    def lock() -> None:
        with client() as opened, opened.exclusive("another job"):
            pass

    yield from {"read": read, "write": write, "audit": audit, "recover": recover, "lock": lock}.items()


@pytest.mark.long
def test_no_value_of_any_field_breaks_a_process() -> None:
    foreign: dict[str, str] = {}
    number = refused = 0
    for name, damaged in forged():
        for what, act in acts(damaged):
            if (what == "lock") != name.startswith(LOCK_KEY):
                continue
            number += 1
            try:
                act()
            except HoldfastError:
                refused += 1
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                foreign.setdefault(f"{what}: {type(error).__name__} {str(error)[:60]}", name)
    assert not foreign, "\n".join(f"{error} in {name}" for error, name in foreign.items())
    assert refused > number / 10


def test_the_undamaged_location_can_do_it_all() -> None:
    for what, act in acts(stored()):
        try:
            act()
        except HoldfastError as error:
            pytest.fail(f"{what}: {error}")
