"""Replaces contents and compares them: what is written, and which differences are found."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.catalog import config
from holdfast.catalog.move import verify
from holdfast.catalog.move.replace import Wanted, changes, wanted_of
from holdfast.catalog.move.verify import RowsDigest, compare
from holdfast.catalog.objects.codec import Row, RowUpdate
from holdfast.catalog.objects.registry import Kind
from holdfast.catalog.stores.preamble import config_row
from holdfast.catalog.stores.store import BATCH_ROWS, batch_of
from holdfast.catalog.upgrade_report import Size
from holdfast.errors import ContentsDiffer, CorruptBlob

KEYS = st.builds(
    lambda kind, key: kind.tag + key, st.sampled_from([Kind.ITEM, Kind.AUDIT_LOG]), st.binary(max_size=2)
)
CONTENTS = st.dictionaries(KEYS, st.binary(max_size=2)).map(
    lambda found: [Row(*item) for item in found.items()]
)


def batches(rows: Iterable[Row]) -> Iterable[pa.RecordBatch]:
    """Rows in columns, some at a time."""
    rest = iter(rows)
    while some := list(islice(rest, 1000)):
        yield batch_of(some)


def digests_of(rows: Iterable[Row]) -> Mapping[str, RowsDigest]:
    return verify.digests_of(batches(rows))


def applied(stored: Iterable[Row], wanted: Iterable[Row]) -> tuple[Counter[Row], int]:
    """What is there after the changes, and how many they were."""
    before, after = list(stored), list(wanted)
    found = Counter(before)

    def rows(but: Collection[Kind]) -> Iterable[pa.RecordBatch]:
        tags = {kind.tag for kind in but}
        return batches(row for row in after if row.key[:2] not in tags)

    updates = list(changes(batches(before), wanted_of(batches(after)), rows))
    for row, diff in updates:
        found[row] += diff
    return +found, len(updates)


@given(CONTENTS, CONTENTS)
def test_the_changes_leave_what_is_wanted_and_write_nothing_that_is_there(
    stored: list[Row], wanted: list[Row]
) -> None:
    found, written = applied(stored, wanted)
    assert found == Counter(wanted)
    assert written == len(set(stored) ^ set(wanted))


def test_more_rows_than_one_batch() -> None:
    stored = [Row(Kind.ITEM.tag + number.to_bytes(4, "big"), b"v") for number in range(BATCH_ROWS + 100)]
    wanted = [*stored[50:], Row(Kind.ITEM.tag + b"new", b""), Row(stored[3].key, b"other")]
    found, written = applied(stored, wanted)
    assert found == Counter(wanted)
    assert written == 52


def test_rows_of_unknown_kinds_go() -> None:
    found, _ = applied([Row(b"\xff\xff", b"?"), Row(b"", b"")], [Row(Kind.ITEM.tag, b"")])
    assert found == Counter([Row(Kind.ITEM.tag, b"")])


def told(wanted: Wanted | None) -> tuple[Mapping[str, RowsDigest], list[tuple[int, int]]]:
    """What is wanted, in an order of its own."""
    assert wanted is not None
    return wanted.digests, sorted(map(tuple, wanted.hashes.tolist()))


@given(CONTENTS, CONTENTS)
def test_what_is_wanted_follows_what_is_committed(before: list[Row], after: list[Row]) -> None:
    updates = [*(RowUpdate(row, 1) for row in after), *(RowUpdate(row, -1) for row in before)]
    assert told(wanted_of(batches(before)).after(updates)) == told(wanted_of(batches(after)))


def test_only_contents_are_followed() -> None:
    row = Row(Kind.ITEM.tag + b"a", b"")
    own = [RowUpdate(config_row(config.LINK, 3), 1), RowUpdate(Row(Kind.FENCE_TOKEN.tag, b"x"), -1)]
    version = config_row(config.USER_VERSION, 3)
    followed = wanted_of(batches([row])).after([*own, RowUpdate(version, 1)])
    assert told(followed) == told(wanted_of(batches([row, version])))


def test_a_change_that_does_not_fit_is_not_followed() -> None:
    row, other = Row(Kind.ITEM.tag + b"a", b""), Row(Kind.ITEM.tag + b"b", b"")
    wanted = wanted_of(batches([row]))
    assert wanted.after([RowUpdate(other, -1)]) is None
    assert wanted.after([RowUpdate(row, 1)]) is None
    assert wanted.after([RowUpdate(other, 1), RowUpdate(other, 1)]) is None
    assert told(wanted.after([RowUpdate(row, 1), RowUpdate(row, -1)])) == told(wanted)


@given(CONTENTS, st.randoms())
def test_a_digest_does_not_depend_on_the_order(contents: list[Row], random: object) -> None:
    shuffled = sorted(contents, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert digests_of(contents) == digests_of(shuffled)


@given(CONTENTS, CONTENTS)
def test_two_contents_have_one_digest_only_where_they_are_equal(one: list[Row], other: list[Row]) -> None:
    assert (digests_of(one) == digests_of(other)) == (Counter(one) == Counter(other))


def test_a_digest_sees_where_a_key_ends_and_how_often_a_row_is_there() -> None:
    row, moved = Row(Kind.ITEM.tag + b"ab", b"c"), Row(Kind.ITEM.tag + b"a", b"bc")
    assert digests_of([row])["items"] != digests_of([moved])["items"]
    assert digests_of([row])["items"] != digests_of([row, row])["items"]
    assert digests_of([row])["items"].size == Size(1, 5)
    assert digests_of([row])["roles"] == RowsDigest()


def test_a_row_of_an_unknown_kind_has_no_digest() -> None:
    with pytest.raises(CorruptBlob, match="a known kind"):
        digests_of([Row(b"\xff\xff", b"")])


def test_a_difference_is_told_with_both_sides() -> None:
    one, other = digests_of([Row(Kind.ITEM.tag, b"1")]), digests_of([Row(Kind.ITEM.tag, b"2")])
    compare(one, one, places=("here", "there"))
    with pytest.raises(
        ContentsDiffer, match=r"differ in items: here has 1 rows of 3 bytes .* there has"
    ) as refused:
        compare(one, other, places=("here", "there"))
    assert refused.value.object_types == ("items",)
    assert config.USER_VERSION not in str(refused.value)
