"""The stored form of the S3-only consensus log (docs/reference/FORMAT.md)."""

from collections import deque
from typing import Final, TypeVar

from google.protobuf.message import Message

from holdfast._pb import consensus_pb2 as pb
from holdfast.errors import CorruptBlob
from holdfast.persist.stores.frame import parse, seal, unseal
from holdfast.persist.stores.log_state import RECENT, Floor, LogObject, LogState, Truncate
from holdfast.persist.stores.traits import Entry, Put

FORMAT_VERSION: Final = 1
OBJECT_MAGIC: Final = b"HFo\n"
CHECKPOINT_MAGIC: Final = b"HFc\n"
FLOOR_MAGIC: Final = b"HFf\n"
FLOOR_NAME: Final = "floor"
LOG_FOLDER: Final = "log/"
CHECKPOINT_FOLDER: Final = "checkpoint/"
_DIGITS: Final = 20

_M = TypeVar("_M", bound=Message)


def object_name(position: int) -> str:
    """Return the name of the object at a position. Names sort in the order of positions."""
    return f"{LOG_FOLDER}{position:0{_DIGITS}}"


def position_of(name: str) -> int | None:
    """Return the position in the name of a log object; None for any other name."""
    digits = name.removeprefix(LOG_FOLDER)
    return int(digits) if len(digits) == _DIGITS and digits.isdecimal() else None


def checkpoint_name(position: int, unique: str) -> str:
    """Return the name of a checkpoint at a position."""
    return f"{CHECKPOINT_FOLDER}{position:0{_DIGITS}}-{unique}"


def checkpoint_position(name: str) -> int | None:
    """Return the position in the name of a checkpoint; None for any other name."""
    return position_of(LOG_FOLDER + name.removeprefix(CHECKPOINT_FOLDER).partition("-")[0])


def encode_object(added: LogObject) -> bytes:
    """Encode a log object."""
    message = pb.LogObject(
        log_id=added.log_id,
        position=added.position,
        token=added.token,
        previous=added.previous,
        puts=[pb.LogPut(key=put.key, seqno=put.seqno, data=put.data) for put in added.puts],
        truncations=[pb.LogTruncation(key=each.key, seqno=each.seqno) for each in added.truncations],
    )
    return seal(OBJECT_MAGIC, FORMAT_VERSION, message.SerializeToString())


def decode_object(data: bytes, position: int, log_id: bytes | None, where: str) -> LogObject:
    """Decode the log object at `position`. If `log_id` is None, it may belong to any log.

    As in all functions here, errors name the store by `where`.
    """
    key = f"{object_name(position)} in {where}"
    message = _open(pb.LogObject(), OBJECT_MAGIC, data, key)
    _check(key, message.log_id, log_id or message.log_id, message.position, position)
    return LogObject(
        message.log_id,
        message.position,
        message.token,
        message.previous,
        tuple(Put(put.key, put.seqno, put.data) for put in message.puts),
        tuple(Truncate(each.key, each.seqno) for each in message.truncations),
    )


def encode_checkpoint(state: LogState, log_id: bytes) -> bytes:
    """Encode a checkpoint."""
    message = pb.LogCheckpoint(log_id=log_id, position=state.position, tokens=list(state.tokens))
    for key, log in sorted(state.logs.items()):
        message.keys.add(key=key, first=log[0].seqno, data=[entry.data for entry in log])
    return seal(CHECKPOINT_MAGIC, FORMAT_VERSION, message.SerializeToString())


def decode_checkpoint(data: bytes, floor: Floor, where: str) -> LogState:
    """Decode the checkpoint that `floor` names."""
    key = f"{floor.checkpoint} in {where}"
    message = _open(pb.LogCheckpoint(), CHECKPOINT_MAGIC, data, key)
    _check(key, message.log_id, floor.log_id, message.position, floor.checkpoint_position)
    logs = {
        log.key: [Entry(seqno, data) for seqno, data in enumerate(log.data, log.first)]
        for log in message.keys
    }
    return LogState(
        position=message.position,
        tokens=deque(message.tokens, maxlen=RECENT),
        logs=logs,
        live_bytes=sum(len(entry.data) for log in logs.values() for entry in log),
        checkpoint_position=message.position,
    )


def encode_floor(floor: Floor) -> bytes:
    """Encode the floor."""
    message = pb.LogFloor(
        log_id=floor.log_id,
        floor=floor.floor,
        checkpoint=floor.checkpoint,
        checkpoint_position=floor.checkpoint_position,
    )
    return seal(FLOOR_MAGIC, FORMAT_VERSION, message.SerializeToString())


def decode_floor(data: bytes, where: str) -> Floor:
    """Decode the floor."""
    key = f"{FLOOR_NAME} in {where}"
    message = _open(pb.LogFloor(), FLOOR_MAGIC, data, key)
    if not 1 <= message.floor <= message.checkpoint_position + 1:
        most = f"a floor from 1 to {message.checkpoint_position + 1}"
        raise CorruptBlob(key, most, f"{message.floor}")
    return Floor(message.log_id, message.floor, message.checkpoint, message.checkpoint_position)


def _open(message: _M, magic: bytes, data: bytes, key: str) -> _M:
    return parse(message, unseal(magic, FORMAT_VERSION, data, key), key)


def _check(key: str, log_id: bytes, wanted_id: bytes, position: int, wanted: int) -> None:
    if log_id != wanted_id:
        raise CorruptBlob(key, f"log {wanted_id.hex()}", f"log {log_id.hex()}")
    if position != wanted:
        raise CorruptBlob(key, f"position {wanted}", f"position {position}")
