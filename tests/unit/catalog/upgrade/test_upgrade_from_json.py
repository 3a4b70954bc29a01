"""Version 14: its JSON is read strictly, and the step to protobuf keeps all of it."""

import json
from collections.abc import Iterator

import pytest
from google.protobuf.json_format import MessageToDict

from holdfast._pb import objects_v15_pb2 as v15
from holdfast.catalog.objects.codec import Row
from holdfast.catalog.objects.registry import Kind
from holdfast.catalog.upgrade import STEPS
from holdfast.catalog.upgrade import legacy_json_objects as v14
from holdfast.errors import CorruptBlob


class Stored:
    def __init__(self, *rows: Row) -> None:
        self._rows = rows

    def rows(self, kind: Kind) -> Iterator[Row]:
        return (row for row in self._rows if row.kind is kind)


def item(key: str = '{"id":"u7"}', **changed: object) -> Row:
    value = {"schema_id": "s3", "name": "ä\n", "type": "collection", "definition": "", **changed}
    return Row(Kind.ITEM.tag + key.encode(), json.dumps(value).encode())


def test_a_row_becomes_the_message_that_says_the_same() -> None:
    stored = item()
    retraction, addition = STEPS[14].updates(Stored(stored))
    assert (retraction.row, retraction.diff, addition.diff) == (stored, -1, 1)
    assert v15.ItemKey.FromString(addition.row.key[2:]) == v15.ItemKey(id=v15.ObjectId(user=7))
    assert v15.ItemValue.FromString(addition.row.value) == v15.ItemValue(
        schema_id=v15.ObjectId(system=3), name="ä\n", type=v15.ObjectType.OBJECT_TYPE_COLLECTION
    )


@pytest.mark.parametrize(
    ("object_", "id_", "field"),
    [("role", "p", "role_id"), ("role", "u1", "role_id"), ("cluster_replica", "s2", "cluster_replica_id")],
)
def test_a_comment_is_on_the_object_that_it_was_on(object_: str, id_: str, field: str) -> None:
    key = f'{{"column":null,"id":"{id_}","object":"{object_}"}}'
    _, added = STEPS[14].updates(Stored(Row(Kind.COMMENT.tag + key.encode(), b'{"comment":"c"}')))
    found = v15.CommentKey.FromString(added.row.key[2:])
    assert found.WhichOneof("object") == field
    assert not found.HasField("column")
    names = {"u": "user", "s": "system", "p": "public"}
    assert list(MessageToDict(found)) == [found.DESCRIPTOR.fields_by_name[field].json_name]
    assert getattr(found, field).WhichOneof("id") == names[id_[0]]


def test_types_have_the_names_that_they_had() -> None:
    found = {f"OBJECT_TYPE_{name}" for name in v14.ObjectType.__members__}
    assert found == set(v15.ObjectType.keys()) - {"OBJECT_TYPE_UNSPECIFIED"}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (Row(Kind.ITEM.tag + b"{", b"{}"), "JSON of a ItemKey"),
        (Row(Kind.ITEM.tag + b"\xff", b"{}"), "JSON of a ItemKey"),
        (Row(Kind.ITEM.tag + b"[" * 100_000, b"{}"), "nested too deep"),
        (item('["id"]'), "no JSON object"),
        (item('{"id":"u7","id":"u8"}'), "named twice"),
        (item('{"id":"u07"}'), 'id "u07"'),
        (item('{"id":"u18446744073709551616"}'), "id"),
        (item('{"id":7}'), "id 7"),
        (item(owner="me"), "the fields definition, name, owner, schema_id, type"),
        (item(type="unspecified"), "field type"),
        (item(name=None), "field name null"),
        (item(name="\ud800"), "field name"),
        (item(schema_id=None), "field schema_id"),
        (Row(Kind.COMMENT.tag + b'{"column":4294967296,"id":"u1","object":"item"}', b""), "column"),
        (Row(Kind.COMMENT.tag + b'{"column":true,"id":"u1","object":"item"}', b""), "column true"),
        (Row(Kind.COMMENT.tag + b'{"column":null,"id":"p","object":"item"}', b""), "public role"),
        (Row(Kind.TIMESTAMP.tag + b'{"timeline":"t"}', b'{"ts":-1}'), "ts -1"),
    ],
)
def test_what_is_no_row_of_that_version_is_damage(row: Row, said: str) -> None:
    with pytest.raises(CorruptBlob, match=f"kind {row.kind.name.lower()}") as caught:
        list(STEPS[14].updates(Stored(row)))
    assert said in str(caught.value)
