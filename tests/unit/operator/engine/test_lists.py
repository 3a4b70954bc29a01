"""Objects are read from lists one at a time, whatever they contain and however they arrive."""

import json
import string
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_operator.engine.lists import ListReader, own, packed, parsed, unmanaged, unpacked

TEXTS = st.text(alphabet=string.printable + 'äß😀\\"[]{}', max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), max_size=5)


def deep(levels: int) -> str:
    return '{"a":' * levels + "{}" + "}" * levels


def read(content: bytes, size: int, keep: Any = dict) -> dict[str, Any]:
    reader = ListReader(keep)
    for at in range(0, len(content), size):
        reader.feed(content[at : at + size])
    return reader.close()


@given(objects=OBJECTS, size=st.integers(1, 40), is_compact=st.booleans(), is_first=st.booleans())
def test_a_list_is_read_as_it_is(
    objects: list[dict[str, Any]], size: int, is_compact: bool, is_first: bool
) -> None:
    rest = {"kind": "L", "metadata": {"continue": "x", "resourceVersion": "9"}}
    whole = {"items": objects, **rest} if is_first else {**rest, "items": objects}
    separators = (",", ":") if is_compact else None
    content = json.dumps(whole, separators=separators, ensure_ascii=not is_compact).encode()
    assert read(content, size) == whole


def test_an_object_is_kept_before_the_next_one_arrives() -> None:
    seen = list[int]()
    reader = ListReader(lambda body: seen.append(body["a"]))
    for chunk, expected in ((b'{"items":[{"a"', []), (b":1},", [1]), (b'{"a":2},{"a":', [1, 2])):
        reader.feed(chunk)
        assert seen == expected


BROKEN = ('{"items":[{"a":1}', '{"items":[{"a":1', '{"items":[}', '{"items":[' + deep(2000)[:-1])


@pytest.mark.parametrize("text", [*BROKEN, "[]", "7", "<html>", ""])
def test_what_is_no_list_is_refused(text: str) -> None:
    reader = ListReader(dict)
    reader.feed(text.encode())
    with pytest.raises(ValueError, match=r"Expect|no object|breaks off"):
        reader.close()


def test_a_page_takes_the_memory_of_one_object() -> None:
    """A page of 100 objects of 1.3 MB took 917 MB."""
    fields = json.dumps({f"f:{number:x}": {} for number in range(5_000)})
    body = f'{{"metadata":{{"name":"a","managedFields":[{fields}]}}}}'.encode()
    reader = ListReader(lambda each: packed(own(each)))
    reader.feed(b'{"items":[')
    tracemalloc.start()
    try:
        reader.feed(body)
        _, one = tracemalloc.get_traced_memory()
        for _ in range(30):
            reader.feed(b"," + body)
        _, all_of_them = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    reader.feed(b"]}")
    assert len(reader.close()["items"]) == 31
    assert one > 10 * len(body)
    assert all_of_them < 2 * one


@pytest.mark.parametrize("text", ["{}", '{"items": null}', '{"kind": "Status", "code": 404}'])
def test_a_response_without_objects_is_read_as_it_is(text: str) -> None:
    assert read(text.encode(), 3) == json.loads(text)


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_what_is_nested_too_deep_is_null_and_the_rest_stays(size: int) -> None:
    odd = '"x]}\\\\\\"{["'
    body = f'{{"a":{odd},"managedFields":[{deep(50_000)},{deep(3)}],"z":[1,{{"b":[]}}],{odd}:2}}'
    found = parsed(body)
    assert found.pop("managedFields")[1] == json.loads(deep(3))
    assert found == {"a": json.loads(odd), "z": [1, {"b": []}], json.loads(odd): 2}
    content = f'{{"items":[{body},{{"n":1}},{body}]}}'.encode()
    items = read(content, size, lambda each: each.get("z", each))["items"]
    assert items == [[1, {"b": []}], {"n": 1}, [1, {"b": []}]]


def test_only_what_is_used_is_kept() -> None:
    metadata = {"name": "a", "managedFields": [{}], "annotations": {"a": "b", "holdfast.dev/truth": "c"}}
    body = {"metadata": metadata, "spec": {"x": 1}, "status": {"y": 1}}
    assert own(body) == body | {"metadata": {"name": "a", "annotations": {"holdfast.dev/truth": "c"}}}
    job = {"kind": "Job", "metadata": metadata, "spec": {"template": {}}}
    assert unmanaged(job) == job | {"metadata": {"name": "a", "annotations": metadata["annotations"]}}
    assert unpacked(packed(body)) == body
