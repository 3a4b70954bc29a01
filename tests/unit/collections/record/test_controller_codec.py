"""The rows of the controller shard: a round trip keeps them, and unknown rows are refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast._pb import controller_pb2 as pb
from holdfast.collections.record.codec import decode, encode_key, encode_value
from holdfast.collections.record.column_names import ColumnNames, HiddenColumn
from holdfast.collections.record.jobs import JobRecord, JobState
from holdfast.collections.record.spec import CollectionInfo, CollectionState, Holder, RenditionInfo
from holdfast.collections.record.state import CommandKind, CommandRecord
from holdfast.errors import CorruptBlob, VersionTooNew
from holdfast.persist.rows.schema import Column, Schema

text = st.text(st.characters(codec="utf-8"), max_size=20)
ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
times = st.integers(0, 2**64 - 1)
json_values = st.dictionaries(
    text, st.none() | st.booleans() | st.integers() | text | st.lists(text, max_size=3), max_size=4
)
types = st.sampled_from(["int64", "string", "float64", "decimal128(10,2)", "timestamp_utc"])


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5, unique=True))
    columns = [Column(name, draw(types), nullable=draw(st.booleans())) for name in names]
    keys = draw(st.integers(0, len(columns)))
    codec = draw(st.none() | st.tuples(text, st.integers(0, 2**32 - 1)))
    return Schema(key=tuple(columns[:keys]), value=tuple(columns[keys:]), codec=codec)


@st.composite
def commented(draw: st.DrawFn) -> CollectionInfo:
    info = draw(collections)
    comments = st.dictionaries(st.sampled_from(info.schema.names), text.filter(len))
    shown = draw(st.sets(st.sampled_from(info.schema.names)))
    names = ColumnNames(tuple((f"{name} stored", name) for name in info.schema.names if name in shown))
    places = draw(st.lists(st.integers(len(info.schema.key), len(info.schema.names)), max_size=2))
    hidden = tuple(
        HiddenColumn(
            place + number, Column(f"gone {number}", draw(types), nullable=True), draw(text) or "x", 7
        )
        for number, place in enumerate(sorted(places))
    )
    return replace(info, comments=draw(comments), names=replace(names, hidden=hidden))


renditions = st.builds(
    RenditionInfo,
    id=text,
    shards=st.lists(text, max_size=3).map(tuple),
    start=times,
    hash_columns=st.lists(text, max_size=3).map(tuple),
)
collections = st.builds(
    CollectionInfo,
    collection_id=ids,
    name=text,
    schema=schemas(),
    shards=st.integers(0, 2**32 - 1),
    hash_columns=st.lists(text, max_size=3).map(tuple),
    metadata_shard=text,
    renditions=st.lists(renditions, max_size=2).map(tuple),
    state=st.sampled_from(CollectionState),
    created_ms=times,
    dropped_ms=times,
    holders=st.lists(st.builds(Holder, text, st.booleans(), text, text, acquired_ms=times), max_size=2).map(
        tuple
    ),
)
commands = st.builds(
    CommandRecord,
    command_id=ids,
    kind=st.sampled_from(CommandKind),
    object_id=text,
    who=text,
    host=text,
    token=text,
    at_ms=times,
    result=json_values,
)
jobs = st.builds(
    JobRecord,
    job_id=ids,
    object_id=text,
    kind=text,
    slot=text,
    attempt=st.integers(0, 2**32 - 1),
    state=st.sampled_from(JobState),
    spec=json_values,
    result=json_values,
    error=text,
    started_ms=times,
    finished_ms=times,
    by=text,
    failures=st.integers(0, 2**32 - 1),
)


@given(commented() | commands | jobs)
def test_a_row_is_read_as_it_was_written(record: CollectionInfo | CommandRecord | JobRecord) -> None:
    assert decode(encode_key(record), encode_value(record)) == record


JOB = JobRecord("j", "o", "snapshot", "1", 1, JobState.RUNNING, started_ms=5)


def test_the_bytes_of_a_row_are_those_of_the_format() -> None:
    assert encode_key(JOB) == b"\x00\x03j"
    assert (
        encode_value(JOB).hex()
        == "1a16" + "0a016f" + "1208736e617073686f74" + "1a0131" + "2001" + "2801" + "4805"
    )


COLLECTION = CollectionInfo(
    collection_id="c",
    name="flights",
    schema=Schema.of(key={"id": "int64"}, value={"name": "string?"}),
    shards=1,
    hash_columns=("id",),
    metadata_shard="m",
    renditions=(RenditionInfo("r1", ("d",), 0, ("id",)),),
    state=CollectionState.ACTIVE,
    created_ms=5,
)


def test_a_collection_without_comments_has_the_bytes_from_before_there_were_any() -> None:
    before = (
        "0a440a07666c6967687473121f0a0b0a0269641205696e74363412100a046e616d651206737472696e671801"
        "1801220269642a016d320b0a0272311201642202696438024005"
    )
    assert encode_value(COLLECTION).hex() == before
    assert decode(b"\x00\x01c", bytes.fromhex(before)) == COLLECTION


def test_comments_have_the_same_bytes_in_whatever_order_they_were_given() -> None:
    comments = {"name": "of the flight", "id": "its number"}
    there, back = (
        replace(COLLECTION, comments=dict(each)) for each in (comments.items(), list(comments.items())[::-1])
    )
    assert encode_value(there) == encode_value(back) != encode_value(COLLECTION)


def test_a_field_that_is_not_known_is_refused() -> None:
    value = encode_value(JOB)
    longer = bytes([value[0], value[1] + 3]) + value[2:] + b"\xa0\x06\x01"
    with pytest.raises(VersionTooNew, match="doesn't know"):
        decode(encode_key(JOB), longer)


def test_a_state_that_is_not_known_is_refused() -> None:
    row = pb.Row.FromString(encode_value(JOB))
    row.job.state = 9  # type: ignore[assignment]
    with pytest.raises(VersionTooNew, match="9"):
        decode(encode_key(JOB), row.SerializeToString(deterministic=True))


@pytest.mark.parametrize("key", [b"\x00\x09j", b"\x00\x01j"], ids=["unknown tag", "tag of another kind"])
def test_a_kind_that_is_not_known_is_refused(key: bytes) -> None:
    with pytest.raises(VersionTooNew, match="unknown kind"):
        decode(key, encode_value(JOB))


def test_bytes_that_are_no_row_are_corrupt() -> None:
    with pytest.raises(CorruptBlob):
        decode(encode_key(JOB), b"\xff\xff\xff")


COMMAND = CommandRecord("id", CommandKind.CREATE_COLLECTION, "c1", "me", "host", "1", 1, {"a": 1})


def test_a_key_that_is_no_text_is_corrupt() -> None:
    with pytest.raises(CorruptBlob, match="controller row"):
        decode(b"\x00\x02\xff", encode_value(COMMAND))


@pytest.mark.parametrize("result", ["[", "[1]", "null", "[" * 100_000])
def test_a_result_that_is_no_json_object_is_corrupt(result: str) -> None:
    row = pb.Row.FromString(encode_value(COMMAND))
    row.command.result_json = result
    with pytest.raises(CorruptBlob, match="JSON object"):
        decode(encode_key(COMMAND), row.SerializeToString(deterministic=True))
