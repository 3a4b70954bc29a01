"""A spec names what is wrong with it."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.ingest import IngestSpec, parse
from holdfast.ingest.envelope import Envelope
from holdfast.ingest.opened import format_of
from holdfast.ingest.spec import FilesSpec
from holdfast.persist import Schema

WHOLE: dict[str, Any] = {
    "files": {"path": "/in", "pattern": "*.json", "onChanged": "ignore"},
    "format": {"json": {}},
    "envelope": "Upsert",
    "include": {"position": "at"},
    "run": {"interval": "500ms", "progressInterval": "2m"},
    "batch": {"maxRows": 10, "maxBytes": "1Ki"},
    "onError": {"collect": {"limit": 3}},
}


def test_a_whole_spec() -> None:
    source = FilesSpec(Path("/in"), "*.json", "ignore")
    wanted = IngestSpec(source, "json", Envelope.UPSERT, {"position": "at"}, 0.5, 120, 10, 1024, 3)
    assert parse(WHOLE) == wanted


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"generator": {"rows": 1}}, "must have one of files, generator"),
        ({"kafka": {}}, "unknown field 'kafka'"),
        ({"files": {}}, "source.files.path must be text"),
        ({"files": {"path": "/in", "glob": "*"}}, "source.files has an unknown field 'glob'"),
        ({"files": []}, r"source.files must be a block of fields, not \[\]"),
        ({"format": {}}, "source.format must be one of json, csv"),
        ({"format": {"xml": {}}}, "source.format must be one of json, csv"),
        ({"format": {"json": {"x": 1}}}, "source.format.json has an unknown field 'x'"),
        ({"envelope": "upsert"}, "source.envelope is 'upsert', expected one of None, Upsert"),
        ({"include": {"offset": "a"}}, "source.include has an unknown field 'offset'"),
        ({"run": {"interval": 5}}, "source.run.interval is 5, expected a duration such as 5s"),
        ({"batch": {"maxRows": 0}}, "source.batch.maxRows is 0, expected a number from 1"),
        ({"batch": {"maxRows": True}}, "source.batch.maxRows is True"),
        ({"batch": {"maxBytes": "1KB"}}, "source.batch.maxBytes is '1KB', expected a size such as 256Mi"),
        ({"onError": {"collect": {"limit": -1}}}, "source.onError.collect.limit is -1"),
    ],
)
def test_a_bad_field_is_named(changed: dict[str, Any], told: str) -> None:
    block = {name: value for name, value in {**WHOLE, **changed}.items() if value is not None}
    with pytest.raises(BadInput, match=told):
        parse(block)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, "source.include.position needs a column 'at' of type int64, found type string"),
        ({"include": {"position": "none"}}, "needs a column 'none' of type int64, found no such column"),
        ({"include": {}, "format": {"raw": {}}}, "format raw needs exactly one column"),
        (
            {"include": {}, "files": None, "generator": {"rows": 1}, "format": {"csv": {}}},
            "format csv is for files",
        ),
        ({"include": {"record": "at"}, "format": {"csv": {}}}, "include.record is for format json"),
    ],
)
def test_a_spec_must_fit_the_columns(changed: dict[str, Any], told: str) -> None:
    block = {name: value for name, value in {**WHOLE, **changed}.items() if value is not None}
    with pytest.raises(BadInput, match=told):
        format_of(parse(block), Schema.of({"id": "int64"}, {"at": "string?"}))


def test_upsert_needs_a_key() -> None:
    spec = parse({**WHOLE, "include": {}})
    with pytest.raises(BadInput, match="envelope Upsert needs a collection with a key"):
        format_of(spec, Schema.of({}, {"id": "int64"}))
