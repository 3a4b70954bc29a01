"""What `erase_collection` deletes, and what it leaves alone."""

from typing import Any

import pytest

from holdfast.collections import CollectionSpec, StorageController
from holdfast.errors import BadInput, CollectionNotFound
from unit.collections.stores import SCHEMA, SPEC, Stores, updates

ROWS = [(number, f"secret {number}", number % 10, 1) for number in range(300)]
KEEPING: dict[str, Any] = {"inline_max_bytes": 0, "gc_grace_s": 3600.0}


@pytest.fixture
def controller(stores: Stores) -> StorageController:
    controller = StorageController(stores.open(**KEEPING))
    controller.create_collection(SPEC)
    controller.writer("flights", purpose="test").append(updates(ROWS), 0, 20)
    return controller


def parts(stores: Stores) -> set[str]:
    """The shards that have blobs of rows."""
    return {meta.key.split("/")[0] for meta in stores.blob.list("s") if "/w" in meta.key}


@pytest.mark.parametrize("ending", ["abort", "hand over", "both"])
def test_the_data_of_all_renditions_is_erased_also_of_those_that_ended(
    stores: Stores, controller: StorageController, ending: str
) -> None:
    controller.renditions.create("flights", shards=2, rendition_id="r2")
    controller.hydrate("flights", "r2")
    if ending != "abort":
        controller.renditions.hand_over("flights", "r2")
        controller.renditions.make_difference("flights")
        controller.renditions.create("flights", shards=1, rendition_id="r3")
        controller.hydrate("flights", "r3")
    if ending != "hand over":
        controller.renditions.abort("flights", "r3" if ending == "both" else "r2")
    other = controller.create_collection(CollectionSpec("c2", "kept", SCHEMA))
    controller.writer("kept", purpose="test").append(updates(ROWS), 0, 20)
    kept = {*other.data_shards, other.metadata_shard, controller.shard_id}
    with pytest.raises(BadInput, match="collection flights \\(c1\\) is not dropped"):
        controller.erase_collection("c1")
    controller.drop_collection("flights")
    assert not controller.is_erased("c1")
    assert [info.collection_id for info in controller.unerased("flights")] == ["c1"]
    assert parts(stores) - kept
    controller.erase_collection("c1")
    assert controller.is_erased("c1")
    assert controller.unerased("flights") == ()
    assert not parts(stores) - kept
    left = {meta.key for meta in stores.blob.list("")}
    StorageController(stores.open(**KEEPING)).erase_collection("c1")
    assert {meta.key for meta in stores.blob.list("")} == left
    with controller.reader("kept", purpose="look") as reader:
        assert reader.snapshot().to_table().num_rows == len(ROWS)
    with pytest.raises(CollectionNotFound):
        controller.erase_collection("c3")


def test_only_the_renditions_that_ended_last_keep_the_ids_of_their_shards(
    controller: StorageController,
) -> None:
    for number in range(2, 13):
        controller.renditions.create("flights", shards=2, rendition_id=f"r{number}")
        controller.renditions.abort("flights", f"r{number}")
    info = controller.describe("flights")
    assert [len(each.shards) for each in info.renditions] == [3, *[0] * 3, *[2] * 8]
    assert info.live == (info.holding,)
