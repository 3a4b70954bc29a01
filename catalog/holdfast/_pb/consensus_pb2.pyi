from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogPut(_message.Message):
    __slots__ = ("key", "seqno", "data")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SEQNO_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    key: str
    seqno: int
    data: bytes
    def __init__(self, key: _Optional[str] = ..., seqno: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class LogTruncation(_message.Message):
    __slots__ = ("key", "seqno")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SEQNO_FIELD_NUMBER: _ClassVar[int]
    key: str
    seqno: int
    def __init__(self, key: _Optional[str] = ..., seqno: _Optional[int] = ...) -> None: ...

class LogObject(_message.Message):
    __slots__ = ("log_id", "position", "token", "previous", "puts", "truncations")
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    PUTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATIONS_FIELD_NUMBER: _ClassVar[int]
    log_id: bytes
    position: int
    token: bytes
    previous: bytes
    puts: _containers.RepeatedCompositeFieldContainer[LogPut]
    truncations: _containers.RepeatedCompositeFieldContainer[LogTruncation]
    def __init__(self, log_id: _Optional[bytes] = ..., position: _Optional[int] = ..., token: _Optional[bytes] = ..., previous: _Optional[bytes] = ..., puts: _Optional[_Iterable[_Union[LogPut, _Mapping]]] = ..., truncations: _Optional[_Iterable[_Union[LogTruncation, _Mapping]]] = ...) -> None: ...

class LogKey(_message.Message):
    __slots__ = ("key", "first", "data")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    key: str
    first: int
    data: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, key: _Optional[str] = ..., first: _Optional[int] = ..., data: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LogCheckpoint(_message.Message):
    __slots__ = ("log_id", "position", "tokens", "keys")
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    log_id: bytes
    position: int
    tokens: _containers.RepeatedScalarFieldContainer[bytes]
    keys: _containers.RepeatedCompositeFieldContainer[LogKey]
    def __init__(self, log_id: _Optional[bytes] = ..., position: _Optional[int] = ..., tokens: _Optional[_Iterable[bytes]] = ..., keys: _Optional[_Iterable[_Union[LogKey, _Mapping]]] = ...) -> None: ...

class LogFloor(_message.Message):
    __slots__ = ("log_id", "floor", "checkpoint", "checkpoint_position")
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_POSITION_FIELD_NUMBER: _ClassVar[int]
    log_id: bytes
    floor: int
    checkpoint: str
    checkpoint_position: int
    def __init__(self, log_id: _Optional[bytes] = ..., floor: _Optional[int] = ..., checkpoint: _Optional[str] = ..., checkpoint_position: _Optional[int] = ...) -> None: ...
