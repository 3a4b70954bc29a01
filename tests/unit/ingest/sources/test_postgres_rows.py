"""Rows of Postgres become JSON by columns: with the bytes that JSON has for each row by itself."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ingest.sources.pgoutput import UNCHANGED
from holdfast.ingest.sources.postgres_rows import Messages
from holdfast.ingest.sources.postgres_table import Unfit
from holdfast.persist import Schema

VALUE = {"näme": "string?", "flag": "bool?", "price": "decimal128(9,2)?", "data": "binary?"}
SCHEMA = Schema.of(key={"id": "int64", "place": "string"}, value=VALUE)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
ROWS = st.lists(
    st.tuples(
        st.integers(-(2**63), 2**63 - 1),
        TEXT,
        st.none() | TEXT,
        st.none() | st.booleans(),
        st.none() | st.sampled_from(["1.50", "-0.01"]),
        st.none() | st.binary(),
    ),
    max_size=20,
)


def sent(value: Any) -> bytes | None:
    """A value as Postgres writes it."""
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, bytes):
        return f"\\x{value.hex()}".encode()
    return None if value is None else str(value).encode()


def copied(value: Any) -> bytes:
    """A value as COPY writes it in CSV."""
    text = sent(value)
    if text is None:
        return b""
    return b'"%s"' % text.replace(b'"', b'""') if not text or set(b'",\r\n') & set(text) else text


def wanted(row: tuple[Any, ...], names: Sequence[str]) -> bytes:
    members = []
    for name, value in zip(SCHEMA.arrow.names, row, strict=True):
        if name not in names or value is None:
            continue
        shown = base64.b64encode(value).decode() if isinstance(value, bytes) else value
        members.append(f"{json.dumps(name)}:{value if name == 'price' else json.dumps(shown)}")
    return f"{{{','.join(members)}}}".encode()


def empty() -> Messages:
    return Messages(SCHEMA.arrow, SCHEMA.key_names, 100)


@given(ROWS)
def test_copied_and_changed_rows_have_the_same_bytes(rows: list[tuple[Any, ...]]) -> None:
    copy, changes = empty(), empty()
    copy.add_csv(b"".join(b",".join(map(copied, row)) + b"\n" for row in rows))
    for row in rows:
        changes.add([sent(each) for each in row], 1)
    for messages in (copy, changes):
        piece = messages.piece(7)
        assert (piece.reached, piece.bad, piece.clears) == (7, [], False)
        assert piece.messages["position"].to_pylist() == list(range(101, 101 + len(rows)))
        assert piece.messages["key"].to_pylist() == [wanted(row, SCHEMA.key_names) for row in rows]
        assert piece.messages["value"].to_pylist() == [wanted(row, SCHEMA.arrow.names) for row in rows]


def test_rows_of_one_column_may_be_empty() -> None:
    schema = Schema.of(key={"place": "string"})
    messages = Messages(schema.arrow, schema.key_names)
    messages.add_csv(b'""\nx\n"""\n"\n')
    assert messages.piece(0).messages["key"].to_pylist() == [
        b'{"place":""}',
        b'{"place":"x"}',
        b'{"place":"\\"\\n"}',
    ]


def test_deletes_unknown_values_and_keys() -> None:
    messages = empty()
    messages.add([b"1", b"a", None, None, None, None], 10, deletes=True)
    messages.add([b"2", b"b", UNCHANGED, b"t", None, None], 20)
    assert messages.size_bytes == 30
    with pytest.raises(Unfit, match="sends a change without the key 'place'"):
        messages.add([b"3", None, None, None, None, None], 1)
    piece = messages.piece(0)
    assert piece.messages["value"].to_pylist() == [None, b'{"id":2,"place":"b","flag":true}']
    assert [(each.index, each.kind) for each in piece.bad] == [(1, "unchanged")]
    following = messages.next(clears=True)
    assert (following.position, following.size_bytes, following.piece(0).clears) == (102, 0, True)
