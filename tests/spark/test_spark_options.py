"""What can be said to `format("holdfast")`, and what is refused in one line."""

import pytest

from holdfast.errors import BadInput
from holdfast.spark.options import DEFAULT_PARTITIONS, ReadOptions, parse_options

NEEDED = {"url": "file:///srv/lake", "collection": "flights"}


def test_only_the_location_and_the_collection_are_needed() -> None:
    assert parse_options(NEEDED) == ReadOptions(
        url="file:///srv/lake",
        collection="flights",
        as_of=None,
        columns=None,
        partitions=DEFAULT_PARTITIONS,
    )


def test_keys_come_in_any_case_and_columns_in_two_forms() -> None:
    given = {"URL": "file:///srv/lake", "Collection": "flights", "ASOF": "17", "partitions": "3"}
    as_list = parse_options({**given, "columns": '["a", "b,c"]'})
    assert (as_list.as_of, as_list.columns, as_list.partitions) == (17, ("a", "b,c"), 3)
    assert parse_options({**given, "columns": " a , b"}).columns == ("a", "b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collection": "flights"}, "option 'url' is missing"),
        ({"url": "file:///srv/lake"}, "option 'collection' is missing"),
        ({**NEEDED, "url": ""}, "option 'url' is missing"),
        ({**NEEDED, "asof": "yesterday"}, "option 'asOf' is 'yesterday', not an integer from 0"),
        ({**NEEDED, "asof": "-1"}, "option 'asOf' is '-1'"),
        ({**NEEDED, "asof": str(2**64)}, "to 18446744073709551615"),
        ({**NEEDED, "partitions": "0"}, "option 'partitions' is '0', not an integer from 1"),
        ({**NEEDED, "columns": ""}, "option 'columns' is '', not a list of column names"),
        ({**NEEDED, "columns": "[1]"}, "not a list of column names"),
        ({**NEEDED, "columns": "[a"}, "no JSON list"),
        ({**NEEDED, "columns": "a,b,a"}, "names a column twice"),
        ({**NEEDED, "where": "a > 1"}, "option 'where' is not supported: filter the DataFrame"),
        ({**NEEDED, "mode": "diff"}, "option 'mode' is not supported"),
        ({**NEEDED, "path": "x"}, "unknown option 'path'; there are url, collection"),
        ({**NEEDED, "provider": "holdfast", "option.url": "x"}, "a table of Spark's catalog can't be a"),
        ({**NEEDED, "url": "memory://x"}, "lives in one process"),
    ],
)
def test_what_has_no_meaning_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_options(options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
