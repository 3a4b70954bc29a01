"""Which options `format("holdfast")` accepts, and the one-line errors for others."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from holdfast.errors import BadInput
from holdfast.spark.options import (
    DEFAULT_PARTITIONS,
    ReadMode,
    ReadOptions,
    for_batch,
    for_stream,
    parse_options,
)

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
        ({**NEEDED, "columns": "[a"}, "not a JSON list"),
        ({**NEEDED, "columns": "a,b,a"}, "names a column twice"),
        ({**NEEDED, "where": "a > 1"}, "option 'where' is not JSON"),
        ({**NEEDED, "where": "{}"}, "option 'where' is not a list of conditions"),
        ({**NEEDED, "where": '[["a", 1.5]]'}, 'option \'where\': ["a", "1.5"] is not a condition'),
        ({**NEEDED, "where": '[["a", ">", 1e99999999999999999999]]'}, "a number that is too great"),
        ({**NEEDED, "where": '[["a", ">"]]'}, 'option \'where\': ["a", ">"] is not a condition'),
        ({**NEEDED, "mode": "changes"}, "option 'mode' is 'changes'; there are snapshot, diff"),
        ({**NEEDED, "timeZone": "Mars/Utopia"}, "option 'timeZone' is 'Mars/Utopia', not a time zone"),
        ({**NEEDED, "timeZone": ""}, "option 'timeZone' is '', not a time zone"),
        ({**NEEDED, "timeZone": "+25:00"}, "option 'timeZone' is '+25:00', not a time zone"),
        ({**NEEDED, "asOf": "1", "asOfTimestamp": "2026-01-01"}, "are both given"),
        (
            {**NEEDED, "asOfTimestamp": "yesterday"},
            "neither a number of milliseconds since 1970 nor an ISO date",
        ),
        ({**NEEDED, "blob": "file:///srv/lake"}, "option 'url' gives both stores"),
        ({"blob": "file:///srv/lake", "collection": "x"}, "option 'consensus' is missing"),
        ({**NEEDED, "maxRowsPerTrigger": "0"}, "option 'maxRowsPerTrigger' is '0', not an integer from 1"),
        ({**NEEDED, "path": "x"}, "unknown option 'path'; there are url, blob, consensus, collection"),
        ({**NEEDED, "provider": "holdfast", "option.url": "x"}, "a table of Spark's catalog can't be a"),
        ({**NEEDED, "url": "memory://x"}, "exists in one process only"),
    ],
)
def test_what_has_no_meaning_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_options(options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "hours"),
    [
        ("UTC", 0),
        ("Z", 0),
        ("Etc/UTC", 0),
        ("Asia/Tokyo", 9),
        ("+09:00", 9),
        ("GMT-3", -3),
        ("UTC+0530", 5.5),
    ],
)
def test_time_zones_are_what_a_session_of_spark_may_have(given: str, hours: float) -> None:
    zone = parse_options({**NEEDED, "timeZone": given}).zone
    assert datetime(2026, 7, 1, tzinfo=zone).utcoffset() == timedelta(hours=hours)


def test_two_stores_a_date_and_conditions_are_understood() -> None:
    options = parse_options(
        {
            "blob": "s3://bucket/lake",
            "consensus": "postgresql://host/lake",
            "collection": "flights",
            "mode": "DIFF",
            "from": "3",
            "asOfTimestamp": "2026-01-02T00:00:00+01:00",
            "where": '[["id", ">=", 10], ["name", "in", ["a", "b"]]]',
        }
    )
    assert (options.url, options.blob, options.consensus) == (
        None,
        "s3://bucket/lake",
        "postgresql://host/lake",
    )
    assert (options.mode, options.after) == (ReadMode.DIFF, 3)
    assert options.as_of == 1_767_308_400_000
    assert options.where == (("id", ">=", 10), ("name", "in", ["a", "b"]))


@pytest.mark.parametrize(
    ("options", "check", "message"),
    [
        ({"mode": "diff"}, for_batch, "option 'from' is missing"),
        ({"from": "3"}, for_batch, "option 'from' is only for changes"),
        ({"maxRowsPerTrigger": "3"}, for_batch, "is only for streams"),
        ({"asOf": "3"}, for_stream, "not for a stream"),
    ],
)
def test_options_of_one_kind_of_reading_are_refused_in_another(options, check, message) -> None:
    with pytest.raises(BadInput, match=message):
        check(parse_options({**NEEDED, **options}))


def test_a_name_stands_for_the_urls_of_its_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[locations.prod]\nurl = "s3://b/p"\nconsensus = "postgresql://h/d"\n')
    monkeypatch.setenv("HOLDFAST_CONFIG", str(file))
    # Executors have no such file.
    found = parse_options({"url": "@prod", "collection": "c"})
    assert (found.url, found.blob, found.consensus) == (None, "s3://b/p", "postgresql://h/d")
    with pytest.raises(BadInput, match="there is no location @prd"):
        parse_options({"url": "@prd", "collection": "c"})
