"""State and diffs survive a round trip. Changed bytes are refused, never read as something else."""

import contextlib
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast._pb import persist_pb2 as pb
from holdfast.errors import CLOSED, CorruptBlob, VersionTooNew
from holdfast.persist.rows.schema import Column, Schema
from holdfast.persist.state.codec import (
    DIFF_MAGIC,
    FORMAT_VERSION,
    LAST_WALL_MS,
    ROLLUP_MAGIC,
    decode_diff,
    decode_state,
    encode_diff,
    encode_state,
    open_frame,
    seal_frame,
)
from holdfast.persist.state.state import (
    TABLES,
    AppendBatch,
    Batch,
    Change,
    CompactionClaim,
    Create,
    CriticalReader,
    Drop,
    ExtendUpper,
    Finalize,
    Garbage,
    LeasedReader,
    Part,
    PendingBatch,
    PutEntry,
    PutSchema,
    ReplaceBatches,
    Rollup,
    SealPending,
    SetGcSeqno,
    SetSince,
    ShardState,
    StateDiff,
    WriteMode,
    Writer,
)
from unit.persist.open_stores import SCHEMA, SHARD

frontiers = st.sampled_from([0, 1, CLOSED - 1, CLOSED]) | st.integers(0, CLOSED)
numbers = st.sampled_from([0, 1, 2**64 - 1]) | st.integers(0, 2**64 - 1)
moments = st.sampled_from([0, 1, LAST_WALL_MS]) | st.integers(0, LAST_WALL_MS)
crcs = st.integers(0, 2**32 - 1)
texts = st.text(max_size=8)
columns = st.builds(
    Column,
    st.text(min_size=1, max_size=5).filter(lambda name: name[0] not in "_*^"),
    st.sampled_from(["int64", "string", "decimal128(10,2)", "timestamp_utc"]),
    st.booleans(),
)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    found = draw(st.lists(columns, min_size=1, max_size=4, unique_by=lambda column: column.name))
    keys = draw(st.integers(0, len(found)))
    codec = draw(st.none() | st.tuples(texts, st.integers(0, 2**32 - 1)))
    return Schema(tuple(found[:keys]), tuple(found[keys:]), codec)


parts = st.builds(
    Part, numbers, st.integers(0, 2**32 - 1), frontiers, frontiers, numbers, crcs, blob_key=texts
) | st.builds(
    Part, numbers, st.integers(0, 2**32 - 1), frontiers, frontiers, numbers, inline=st.binary(max_size=9)
)
runs = st.lists(st.lists(parts, max_size=2).map(tuple), max_size=2).map(tuple)
batches = st.builds(Batch, numbers, frontiers, frontiers, frontiers, runs, st.integers(0, 99))
values = {
    LeasedReader: st.builds(LeasedReader, texts, frontiers, numbers, numbers, numbers, texts, texts),
    CriticalReader: st.builds(CriticalReader, texts, frontiers, texts, st.binary(max_size=9)),
    Writer: st.builds(Writer, texts, numbers, numbers, texts, texts, st.binary(max_size=16), frontiers),
    Rollup: st.builds(Rollup, numbers, texts, numbers, crcs),
    CompactionClaim: st.builds(CompactionClaim, texts, texts, st.lists(numbers, max_size=3).map(tuple)),
    Garbage: st.builds(Garbage, texts, numbers, moments),
    PendingBatch: st.builds(PendingBatch, texts, texts, frontiers, frontiers, runs, st.integers(0, 99)),
}
drops = st.one_of([st.builds(Drop, st.just(kind), numbers if kind is Rollup else texts) for kind in TABLES])
changes: dict[type, st.SearchStrategy[Change]] = {
    Create: st.builds(Create, st.sampled_from(WriteMode)),
    PutSchema: st.builds(PutSchema, st.integers(0, 2**32 - 1), schemas()),
    AppendBatch: st.builds(AppendBatch, batches),
    ExtendUpper: st.builds(ExtendUpper, frontiers),
    SealPending: st.builds(SealPending, frontiers),
    ReplaceBatches: st.builds(ReplaceBatches, st.lists(numbers, max_size=3).map(tuple), st.none() | batches),
    SetSince: st.builds(SetSince, frontiers),
    PutEntry: st.one_of(*(st.builds(PutEntry, value) for value in values.values())),
    Drop: drops,
    SetGcSeqno: st.builds(SetGcSeqno, numbers),
    Finalize: st.just(Finalize()),
}
diffs = st.builds(
    StateDiff,
    numbers,
    texts,
    texts,
    moments,
    texts,
    st.none() | values[Rollup],
    st.lists(st.one_of(*changes.values()), max_size=4).map(tuple),
)


@st.composite
def states(draw: st.DrawFn) -> ShardState:
    tables: dict[str, Any] = {
        name: {getattr(value, key): value for value in draw(st.lists(values[kind], max_size=2))}
        for kind, (name, key) in TABLES.items()
    }
    return ShardState(
        draw(texts),
        draw(numbers),
        draw(texts),
        draw(moments),
        draw(texts),
        draw(st.sampled_from(WriteMode)),
        draw(st.booleans()),
        draw(frontiers),
        draw(numbers),
        draw(st.dictionaries(st.integers(0, 2**32 - 1), schemas(), max_size=2)),
        draw(st.lists(batches, max_size=3).map(tuple)),
        **tables,
    )


@given(states())
def test_a_state_comes_back_from_its_bytes(state: ShardState) -> None:
    assert decode_state(encode_state(state), "key") == state


@given(diffs)
def test_a_diff_comes_back_from_its_bytes(diff: StateDiff) -> None:
    assert decode_diff(encode_diff(diff), "key") == diff


@pytest.mark.parametrize("kind", changes, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=25)
def test_every_kind_of_change_comes_back(kind: type, data: st.DataObject) -> None:
    change = data.draw(changes[kind])
    assert type(change) is kind
    diff = StateDiff(1, SHARD, "", 1, "", None, (change,))
    assert decode_diff(encode_diff(diff), "key").changes == (change,)


def test_the_strategies_cover_every_field_and_change() -> None:
    names = {field.name for field in fields(ShardState)}
    assert {name for name, _ in TABLES.values()} <= names
    assert set(values) == set(TABLES)
    assert {oneof.name for oneof in pb.Change.DESCRIPTOR.oneofs} == {"change"}
    puts = len(values)
    assert len(pb.Change.DESCRIPTOR.fields) == len(changes) - 2 + 2 * puts


DIFF = encode_diff(
    StateDiff(
        7,
        SHARD,
        "0.1",
        99,
        "ship",
        Rollup(5, "roll", 100, 1),
        (
            PutEntry(Writer("w", 1, 2, "p", "h", b"token", 3)),
            AppendBatch(Batch(7, 10, 20, 0, ((Part(3, 1, 10, 11, 5, inline=b"12345"),),))),
            PutSchema(1, SCHEMA),
        ),
    )
)
STATE = encode_state(
    ShardState(
        SHARD,
        seqno=7,
        schemas={1: SCHEMA},
        batches=(Batch(7, 0, 20, 3, ((Part(3, 1, 10, 11, 5, 9, blob_key="b"),),)),),
        writers={"w": Writer("w", 1, 2, "p", "h", b"token", 3)},
        critical_readers={"c": CriticalReader("c", 4, "backup")},
    )
)
DECODERS = pytest.mark.parametrize(
    ("data", "decode"), [(DIFF, decode_diff), (STATE, decode_state)], ids=["diff", "state"]
)


@DECODERS
def test_every_flipped_bit_is_found(data: bytes, decode: Callable[[bytes, str], object]) -> None:
    for position in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptBlob, match="the key is corrupt"):
            decode(bytes(damaged), "the key")


@DECODERS
def test_every_truncation_and_any_more_is_found(data: bytes, decode: Callable[[bytes, str], object]) -> None:
    damaged = [data[:length] for length in range(len(data))] + [data + b"\0", data + data]
    for bad in damaged:
        with pytest.raises(CorruptBlob, match="the key is corrupt"):
            decode(bad, "the key")


@given(st.binary(max_size=200))
def test_bytes_that_nobody_wrote_are_refused(body: bytes) -> None:
    for data in (body, DIFF_MAGIC + body, ROLLUP_MAGIC + body):
        for decode in (decode_diff, decode_state):
            with pytest.raises(CorruptBlob):
                decode(data, "key")


@given(st.binary(max_size=40))
@example(b"J\x00")
def test_a_sound_frame_around_nonsense_is_never_another_kind_of_error(body: bytes) -> None:
    for magic, decode in ((DIFF_MAGIC, decode_diff), (ROLLUP_MAGIC, decode_state)):
        with contextlib.suppress(CorruptBlob, VersionTooNew):
            decode(seal_frame(magic, body), "key")


def test_a_diff_is_not_taken_for_a_rollup() -> None:
    with pytest.raises(CorruptBlob, match="magic"):
        decode_state(DIFF, "key")
    with pytest.raises(CorruptBlob, match="magic"):
        decode_diff(STATE, "key")


def test_a_newer_format_is_told_from_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr("holdfast.persist.state.codec.FORMAT_VERSION", FORMAT_VERSION + 1)
        frame = seal_frame(DIFF_MAGIC, b"what a later version says")
        assert open_frame(DIFF_MAGIC, frame, "key") == b"what a later version says"
    with pytest.raises(VersionTooNew, match=r"the log .* version 2, this Holdfast reads up to 1") as error:
        decode_diff(frame, "the log")
    assert "use a Holdfast at least as new" in error.value.hint
    with pytest.raises(CorruptBlob):
        decode_diff(frame[:-1], "the log")


def test_a_change_of_a_kind_to_come_is_refused() -> None:
    unknown = pb.StateDiff(seqno=1, changes=[pb.Change()]).SerializeToString()
    with pytest.raises(VersionTooNew, match="a kind of change"):
        decode_diff(seal_frame(DIFF_MAGIC, unknown), "key")
    column = pb.Change(put_schema=pb.Schema(key=[pb.Column(name="g", type="geometry")]))
    with pytest.raises(VersionTooNew, match="'geometry'"):
        decode_diff(seal_frame(DIFF_MAGIC, pb.StateDiff(changes=[column]).SerializeToString()), "key")
    mode = pb.Change()
    mode.ParseFromString(b"\x08\x07")
    with pytest.raises(VersionTooNew, match="write mode"):
        decode_diff(seal_frame(DIFF_MAGIC, pb.StateDiff(changes=[mode]).SerializeToString()), "key")


def test_a_field_to_come_is_refused_and_not_dropped_by_the_next_rollup() -> None:
    field = b"\xfa\x7f\x03new"
    rollup = pb.ShardState(shard_id=SHARD, seqno=7, batches=[pb.Batch(id=1)])
    diff = pb.StateDiff(seqno=1, changes=[pb.Change(append=pb.Batch(id=1))])
    for added in (b"", field):
        rollup.batches[0].MergeFromString(added)
        diff.changes[0].append.MergeFromString(added)
        frames = [
            (decode_state, seal_frame(ROLLUP_MAGIC, rollup.SerializeToString())),
            (decode_diff, seal_frame(DIFF_MAGIC, diff.SerializeToString())),
        ]
        for decode, frame in frames:
            if not added:
                decode(frame, "key")
                continue
            with pytest.raises(VersionTooNew, match="key has fields that this Holdfast does not know"):
                decode(frame, "key")
