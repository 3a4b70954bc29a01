"""Invalid arguments give one clear `BadInput`, and nothing durable changes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.errors import CLOSED, BadInput, DiffOverflow, HoldfastError
from holdfast.persist import PersistClient, PersistConfig, ReadHandle, Schema, WriteHandle, WriteMode

SCHEMA = Schema.of({"id": "int64"}, {"name": "string"})
SHARD = "s00000000-0000-4000-8000-000000000001"
ROWS = [{"id": 1, "name": "a"}]
Call = Callable[[PersistClient, WriteHandle, ReadHandle], Any]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[PersistClient]:
    with PersistClient.open(tmp_path / "a folder") as client:
        yield client


CALLS: dict[str, tuple[Call, str]] = {
    "append str": (lambda _, w, __: w.compare_and_append(ROWS, "0", 1), "expected_upper '0' is not a f"),  # type: ignore[arg-type]
    "append None": (lambda _, w, __: w.compare_and_append(ROWS, None, 1), "expected_upper None is not"),  # type: ignore[arg-type]
    "append float": (lambda _, w, __: w.compare_and_append(ROWS, 1.0, 2.0), "expected_upper 1.0 is not"),  # type: ignore[arg-type]
    "append bool": (lambda _, w, __: w.compare_and_append(ROWS, True, 2), "expected_upper True is not"),
    "append beyond": (lambda _, w, __: w.compare_and_append(ROWS, 1, CLOSED + 1), "new_upper 18446744073709"),
    "append back": (lambda _, w, __: w.compare_and_append(ROWS, 1, 1), "must move the upper forward"),
    "surrogate": (
        lambda _, w, __: w.compare_and_append([{"id": 1, "name": "\ud800"}], 1, 2),
        "column 'name' does not fit string",
    ),
    "seal str": (lambda _, w, __: w.seal("x"), "new_upper 'x' is not a frontier"),  # type: ignore[arg-type]
    "seal float": (lambda _, w, __: w.seal(1.5), "new_upper 1.5 is not a frontier"),  # type: ignore[arg-type]
    "seal beyond": (lambda _, w, __: w.seal(CLOSED + 1), "is not a frontier: expected 0 to 2.64"),
    "snapshot str": (lambda _, __, r: r.snapshot("0"), "as_of '0' is not a time"),  # type: ignore[arg-type]
    "snapshot None": (lambda _, __, r: r.snapshot(None), "as_of None is not a time"),  # type: ignore[arg-type]
    "snapshot wanted": (lambda _, __, r: r.snapshot(0, wanted="x"), "a range of keys must be a KeyRange"),  # type: ignore[arg-type]
    "snapshot columns": (lambda _, __, r: r.snapshot(0, columns="id"), "columns must be a list of names"),
    "parts": (lambda _, __, r: r.snapshot_parts(0, "x"), "can't be cut into 'x' parts"),  # type: ignore[arg-type]
    "listen": (lambda _, __, r: r.listen("x"), "as_of 'x' is not a time"),  # type: ignore[arg-type]
    "subscribe": (lambda _, __, r: r.subscribe(0.0), "as_of 0.0 is not a time"),  # type: ignore[arg-type]
    "compaction": (lambda _, __, r: r.allow_compaction("x"), "since 'x' is not a frontier"),  # type: ignore[arg-type]
    "shard id": (lambda c, _, __: c.reader(None, purpose="p"), "None.* is not a shard id"),  # type: ignore[arg-type]
    "schema None": (lambda c, _, __: c.writer(SHARD, None, purpose="p"), "a schema must be a holdfast"),  # type: ignore[arg-type]
    "schema dict": (lambda c, _, __: c.writer(SHARD, {"k": "int64"}, purpose="p"), "Schema, not {'k'"),  # type: ignore[arg-type]
    "mode": (lambda c, _, __: c.writer(SHARD, SCHEMA, purpose="p", mode="x"), "the mode of a writer must be"),  # type: ignore[arg-type]
    "name mode": (lambda c, _, __: c.create_or_load("n", SCHEMA, mode="x"), "the mode of a writer must be"),  # type: ignore[arg-type]
    "evolve": (lambda c, _, __: c.evolve(SHARD, None), "a schema must be a holdfast"),  # type: ignore[arg-type]
    "multi int": (lambda c, _, __: c.multi_write([1]), "takes prepared commands, not 1"),  # type: ignore[list-item]
    "multi None": (lambda c, _, __: c.multi_write(None), "takes a list of prepared commands"),  # type: ignore[arg-type]
    "expect": (lambda c, _, __: c.prepare_expect_upper(SHARD, "x"), "upper 'x' is not a frontier"),  # type: ignore[arg-type]
    "exclusive": (lambda c, _, __: c.exclusive("\ud800"), "a reentrance id must be a string"),
    "lock purpose": (lambda c, _, __: c.exclusive("me", purpose="\ud800"), "a purpose must be a string"),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_argument_is_one_line_and_changes_nothing(client: PersistClient, call: str) -> None:
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(ROWS, 0, 1)
    reader = client.reader(SHARD, purpose="test")
    before = client.session.machine(SHARD).refresh().seqno
    act, message = CALLS[call]
    with pytest.raises(BadInput, match=message) as refused:
        act(client, writer, reader)
    assert client.session.machine(SHARD).refresh().seqno == before
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("purpose", [None, "", " ", 7, "\ud800", "x" * 1025])
@pytest.mark.parametrize(
    "act",
    [
        lambda client, purpose: client.writer(SHARD, SCHEMA, purpose=purpose),
        lambda client, purpose: client.reader(SHARD, purpose=purpose),
        lambda client, purpose: client.critical_since(SHARD, purpose=purpose),
        lambda client, purpose: client.prepare_create(SHARD, SCHEMA, purpose=purpose),
        lambda client, purpose: client.prepare_critical(SHARD, purpose=purpose),
        lambda client, purpose: client.prepare_downgrade_critical(SHARD, 1, purpose=purpose),
        lambda client, purpose: client.prepare_release_critical(SHARD, purpose=purpose),
    ],
)
def test_a_purpose_is_a_short_text(
    client: PersistClient, act: Callable[[PersistClient, Any], Any], purpose: Any
) -> None:
    client.writer(SHARD, SCHEMA, purpose="x" * 1024).compare_and_append(ROWS, 0, 1)
    with pytest.raises(BadInput, match="a purpose must be a string of 1 to 1024 characters"):
        act(client, purpose)


def test_integers_of_other_libraries_are_frontiers(client: PersistClient) -> None:
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    writer.compare_and_append(ROWS, np.int64(0), np.uint64(3))  # type: ignore[arg-type]
    writer.seal(np.int64(5))  # type: ignore[arg-type]
    assert client.reader(SHARD, purpose="test").snapshot(np.int64(4)).to_table().num_rows == 1  # type: ignore[arg-type]


def test_a_path_is_the_location_that_its_url_names(tmp_path: Path) -> None:
    folder = tmp_path / "with spaces & 100%"
    with PersistClient.open(folder) as first, PersistClient.open(folder.as_uri()) as second:
        assert first.location_id == second.location_id
    with pytest.raises(BadInput, match="a URL is a string, not of type int"):
        PersistClient.open(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["rw", "readonly", None, True])
def test_a_client_of_an_unknown_mode_is_refused(tmp_path: Path, mode: Any) -> None:
    with pytest.raises(BadInput, match="the mode of a client is 'write' or 'read'"):
        PersistClient.open(tmp_path / "new", mode=mode)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease_s", -1),
        ("lease_s", float("nan")),
        ("lease_s", float("inf")),
        ("part_target_bytes", 0),
        ("inline_max_bytes", 1.5),
        ("rollup_every", True),
        ("compaction_fanin", 1),
        ("gc_grace_s", "60"),
        ("maintenance", "never"),
        ("builder_threads", 1),
        ("hostname", None),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=rf"PersistConfig\.{name} must be .*, not {value!r}"):
        PersistConfig(**{name: value})


@pytest.mark.parametrize("inline", [0, 64 * 1024])
def test_diffs_that_overflow_are_told_by_shard_and_row(tmp_path: Path, inline: int) -> None:
    config = PersistConfig(inline_max_bytes=inline, maintenance="off")
    with PersistClient.open(tmp_path / "location", config=config) as client:
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        writer.compare_and_append([{"id": 1, "name": "a", "_diff": 2**63 - 1}], 0, 1)
        writer.compare_and_append([*ROWS, {"id": 2, "name": "b"}], 1, 2)
        reader = client.reader(SHARD, purpose="test")
        told = rf"row \(id=1, name='a'\) of shard {SHARD} does not fit int64"
        reads: list[Callable[[], Any]] = [
            lambda: reader.snapshot(1).to_table(),
            lambda: list(reader.snapshot(1)),
        ]
        for read in reads:
            with pytest.raises(DiffOverflow, match=told) as refused:
                read()
            assert not isinstance(refused.value, BadInput)
            assert "opposite _diff" in refused.value.hint
        # As the hint says.
        writer.compare_and_append([{"id": 1, "name": "a", "_diff": -5}], 2, 3)
        assert sum(reader.snapshot(2).to_table().column("_diff").to_pylist()) == 2**63 - 4


def test_a_builder_says_that_its_caller_overflowed(client: PersistClient) -> None:
    writer = client.writer(SHARD, SCHEMA, purpose="test")
    with writer.batch_builder() as builder:
        builder.add([{"id": 1, "name": "a", "_diff": 2**63 - 1}, *ROWS])
        with pytest.raises(BadInput, match=r"\(id=1, name='a', _time=0\)"):
            builder.compare_and_append(0, 1)
    assert writer.upper() == 0


def test_every_mode_of_a_writer_is_one() -> None:
    assert {mode.name for mode in WriteMode} == {"APPEND", "WRITE_SEAL"}
    assert issubclass(DiffOverflow, HoldfastError)
