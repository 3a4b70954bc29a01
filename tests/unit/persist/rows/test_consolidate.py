"""Compares consolidation with its definition, for each engine and each form of a source."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import polars_forks
from holdfast.errors import CLOSED, CorruptBlob, DiffOverflow, VersionTooNew
from holdfast.persist.rows import arrow_rows, consolidate
from holdfast.persist.rows.canonical import empty_updates, prepare_updates, sort_updates
from holdfast.persist.rows.consolidate import ParquetSource, Source, consolidate_at, consolidate_updates
from holdfast.persist.rows.part import encode_parquet
from holdfast.persist.rows.schema import Schema
from unit.persist.rows.strategies import batches, comparable, contents, schemas

WORDS = Schema.of(key={"word": "string"})
# The rows up to which Python is used, and then Arrow, and whether Polars can't be used.
ENGINES = ((0, 0, False), (0, 0, True), (0, 4096, False), (1000, 4096, False))
TIMES = st.integers(0, 7) | st.just(2**64 - 1)


@st.composite
def sources(draw: st.DrawFn, schema: Schema) -> tuple[list[Source], pa.Table]:
    """Some sources of every form, and the same updates as one table."""
    pieces = draw(st.lists(batches(schema), max_size=4))
    given_: list[Source] = []
    for number, batch in enumerate(pieces):
        match draw(st.sampled_from(["batch", "table", "parquet"])):
            case "batch":
                given_.append(batch)
            case "table":
                given_.append(pa.Table.from_batches([batch[:3], batch[3:]]))
            case _:
                data = encode_parquet(schema, 0, sort_updates(schema, batch), row_group_rows=10)
                given_.append(ParquetSource(data, f"p{number}"))
    return given_, pa.Table.from_batches(pieces, schema=schema.arrow_updates)


@given(st.data())
def test_contents_at_a_time_are_the_sums_up_to_it(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    pieces, updates = data.draw(sources(schema))
    as_of = data.draw(TIMES)
    times = updates.column("_time").to_pylist()
    expected = contents(schema, updates.filter(pa.array([time <= as_of for time in times], pa.bool_())))
    for small, few, lost in ENGINES:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(consolidate, "SMALL_ROWS", small)
            patch.setattr(arrow_rows, "FEW_ROWS", few)
            patch.setattr(polars_forks, "_lost", lost)
            result = consolidate_at(schema, pieces, as_of)
        assert result.schema.equals(schema.arrow_diff)
        result.validate(full=True)
        assert result.num_rows == len(expected)
        assert contents(schema, result) == expected


@given(st.data())
def test_consolidated_updates_keep_all_contents_from_since_on(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    pieces, updates = data.draw(sources(schema))
    since = data.draw(TIMES)
    expected: dict[tuple[object, ...], int] = {}
    rows = zip(comparable(schema, updates), updates.column("_time").to_pylist(), strict=True)
    for (row, time), diff in zip(rows, updates.column("_diff").to_pylist(), strict=True):
        moved = (row, max(time, since))
        expected[moved] = expected.get(moved, 0) + diff
    ordered = [(*moved, diff) for moved, diff in sorted(expected.items()) if diff]
    for small, few, lost in ENGINES:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(consolidate, "SMALL_ROWS", small)
            patch.setattr(arrow_rows, "FEW_ROWS", few)
            patch.setattr(polars_forks, "_lost", lost)
            result = consolidate_updates(schema, pieces, since)
        assert result.schema.equals(schema.arrow_updates)
        found = [comparable(schema, result), *(result.column(n).to_pylist() for n in ("_time", "_diff"))]
        assert list(zip(*found, strict=True)) == ordered


@pytest.fixture(params=ENGINES, ids=["query engine", "arrow", "arrow, for few rows", "small"])
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    small, few, lost = request.param
    monkeypatch.setattr(consolidate, "SMALL_ROWS", small)
    monkeypatch.setattr(arrow_rows, "FEW_ROWS", few)
    monkeypatch.setattr(polars_forks, "_lost", lost)


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("parquet", [False, True])
def test_a_sum_beyond_int64_is_an_error(parquet: bool) -> None:
    def source(*diffs: int) -> Source:
        batch = prepare_updates(WORDS, [{"word": "a", "_diff": diff} for diff in diffs], default_time=0)
        return ParquetSource(encode_parquet(WORDS, 0, batch), "k") if parquet else batch

    largest, least = 2**63 - 1, -(2**63)
    for over in ([source(largest, 1)], [source(largest), source(1)], [source(least), source(-1)]):
        with pytest.raises(DiffOverflow, match=r"row \(.*=.*\) does not fit int64"):
            consolidate_at(WORDS, over, 0)
        with pytest.raises(DiffOverflow, match=r"row \(.*=.*\) does not fit int64"):
            consolidate_updates(WORDS, over, 0)
    for total, within in (
        (largest, [source(largest, 1, -1)]),
        (least, [source(least, 1), source(-1)]),
        (-1, [source(least, largest)]),
    ):
        assert consolidate_at(WORDS, within, 0).to_pylist() == [{"word": "a", "_diff": total}]
        assert consolidate_updates(WORDS, within, 0).column("_diff").to_pylist() == [total]


@pytest.mark.usefixtures("each_engine")
def test_nothing_consolidates_to_nothing() -> None:
    empty = empty_updates(WORDS)
    for nothing in ([], [empty], [ParquetSource(encode_parquet(WORDS, 0, empty), "k")]):
        assert consolidate_at(WORDS, nothing, 5).equals(WORDS.arrow_diff.empty_table())
        assert consolidate_updates(WORDS, nothing, 5).equals(WORDS.arrow_updates.empty_table())


@pytest.mark.usefixtures("each_engine")
def test_a_closed_since_moves_all_to_the_last_time() -> None:
    batch = prepare_updates(WORDS, [{"word": "a", "_time": 1}, {"word": "a", "_time": 9}], default_time=0)
    updates = consolidate_updates(WORDS, [batch], CLOSED)
    assert updates.to_pylist() == [{"word": "a", "_time": 2**64 - 1, "_diff": 2}]
    assert consolidate_at(WORDS, [batch], CLOSED).to_pylist() == [{"word": "a", "_diff": 2}]


@pytest.mark.usefixtures("each_engine")
def test_a_source_that_is_no_part_is_refused_by_its_key() -> None:
    batch = prepare_updates(WORDS, [{"word": "a"}], default_time=0)
    data = encode_parquet(WORDS, 0, batch)
    other = Schema.of(key={"word": "binary"})
    with pytest.raises(CorruptBlob, match="part-7 is corrupt"):
        consolidate_at(WORDS, [ParquetSource(data[:-1], "part-7")], 0)
    with pytest.raises(CorruptBlob, match="part-7 is corrupt"):
        consolidate_at(other, [ParquetSource(data, "part-7")], 0)
    torn = bytearray(data)
    torn[4:40] = bytes(36)
    with pytest.raises(CorruptBlob, match="part-7 is corrupt"):
        consolidate_updates(WORDS, [batch, ParquetSource(bytes(torn), "part-7")], 0)
    newer = data.replace(b"holdfast.format_version\x18\x011", b"holdfast.format_version\x18\x012")
    assert newer != data
    with pytest.raises(VersionTooNew, match="part-7 has part format 2"):
        consolidate_at(WORDS, [ParquetSource(newer, "part-7")], 0)
