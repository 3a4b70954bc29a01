"""Bad records end with a good message of the same key, however that is written."""

from collections import Counter

import pytest

from holdfast.collections import StorageController
from holdfast.ingest.formats.keys import JsonKeys
from holdfast.ingest.kept import errors
from holdfast.ingest.standing import ENDS_WITH, RAW_BYTES, mark
from holdfast.persist import PersistClient, Schema
from unit.collections.stores import Stores
from unit.ingest.pipelines import bad, created, drained, pipeline, rows
from unit.ingest.topic import Topic

LONG = "x" * 17_000


@pytest.fixture
def client() -> PersistClient:
    client = Stores().open()
    created(client, schema=Schema.of({"id": "string"}, {"name": "string?"}))
    return client


class Feed:
    """Sends messages, and feeds each by another process or by the same one."""

    def __init__(self, client: PersistClient, *, anew: bool) -> None:
        self.client, self.topic, self.anew = client, Topic(), anew
        self._open = pipeline(client, self.topic, envelope="Upsert")

    def send(self, *messages: tuple[str, str | None]) -> None:
        for key, value in messages:
            sent = (key.encode(), None if value is None else value.encode())
            self.topic.partitions.setdefault("0", []).append(sent)
        feed = pipeline(self.client, self.topic, envelope="Upsert") if self.anew else self._open
        drained(feed)


ANEW = pytest.mark.parametrize("anew", [False, True])


@ANEW
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('{"id":"1"}', '{"id": "1"}'),
        ('{"id":"1"}', '"1"'),
        ('{"id":"1","more":2}', '{"id":"\\u0031"}'),
        (f'{{"id":"{LONG}"}}', f'{{"id": "{LONG}"}}'),
    ],
)
@pytest.mark.parametrize("ends", ["good", "deletion"])
def test_two_ways_to_write_a_key_are_one_key(
    client: PersistClient, first: str, second: str, ends: str, anew: bool
) -> None:
    feed = Feed(client, anew=anew)
    id_ = LONG if LONG in first else "1"
    feed.send((first, "oops"))
    assert bad(client) == [("0", 0, "decode")]
    feed.send((second, f'{{"id":"{id_}","name":"good"}}' if ends == "good" else None))
    assert bad(client) == []
    assert rows(client) == (Counter({(id_, "good"): 1}) if ends == "good" else Counter())
    # In one step, the order of the messages decides.
    feed.send((second, f'{{"id":"{id_}"}}'), (first, "oops"))
    assert (rows(client), bad(client)) == (Counter(), [("0", 3, "decode")])
    feed.send((first, "oops"), (second, f'{{"id":"{id_}"}}'))
    assert (rows(client), bad(client)) == (Counter({(id_, None): 1}), [])


@ANEW
@pytest.mark.parametrize("form", ['{{"id":"{}"}}', "{}"])
def test_long_keys_with_the_same_beginning_are_two(client: PersistClient, form: str, anew: bool) -> None:
    feed = Feed(client, anew=anew)
    one, other = (form.format(LONG + end) for end in "ab")
    feed.send((one, "oops"), (other, "oops"))
    assert bad(client) == [("0", 0, "decode"), ("0", 1, "decode")]
    feed.send((other, f'{{"id":"{LONG}b"}}'))
    assert bad(client) == [("0", 0, "decode")]
    feed.send((one, f'{{"id":"{LONG}a"}}'))
    assert bad(client) == []


@ANEW
def test_keys_that_can_not_be_decoded_are_compared_by_their_bytes(client: PersistClient, anew: bool) -> None:
    feed = Feed(client, anew=anew)
    feed.send(("Struct{id=1}", "oops"), ("Struct{id=2}", "oops"))
    feed.send(("Struct{id=1}", '{"id":"1"}'))
    assert bad(client) == [("0", 1, "decode")]


def test_a_key_that_an_earlier_version_has_cut_ends_with_no_other(client: PersistClient) -> None:
    (row,) = errors_of(client, f'{{"id":"{LONG}"}}')
    assert len(row["key"]) == RAW_BYTES
    old = {**row, "key": f'{{"id":"{LONG}'.encode()[:RAW_BYTES]}
    form = JsonKeys(Schema.of({"id": "string"}).arrow)
    mark([row, old], form, stored=True)
    assert row[ENDS_WITH] != old[ENDS_WITH]


def errors_of(client: PersistClient, key: str) -> list[dict[str, object]]:
    Feed(client, anew=False).send((key, "oops"))
    return errors(StorageController(client), "orders")[1].to_pylist()
