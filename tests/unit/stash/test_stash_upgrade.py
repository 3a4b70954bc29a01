"""An upgrade in a stash makes an object larger than a stash allows."""

from contextlib import closing

import pytest

from holdfast.catalog import OpenMode, stash_catalog
from holdfast.catalog.objects.codec import TAG_BYTES, Row
from holdfast.catalog.objects.registry import Kind
from holdfast.catalog.stores.stash import StashStore
from holdfast.catalog.upgrade_check import check_upgrade
from holdfast.errors import BadInput
from holdfast.stash import MAX_ROW_BYTES
from testbed.oldcatalogs import make_row, rows_of
from testbed.oldstores import begin


def item_of(definition: str) -> Row:
    value = {"schema_id": {"user": 2}, "name": "big", "type": "OBJECT_TYPE_VIEW", "definition": definition}
    return make_row(17, Kind.ITEM, {"id": {"user": 1000}}, value)


def size(row: Row) -> int:
    return len(row.key) - TAG_BYTES + len(row.value)


def test_an_object_that_would_outgrow_the_stash_is_refused_before_anything_is_changed(stash_url: str) -> None:
    # The length of a string takes some bytes too.
    largest = item_of("x" * (MAX_ROW_BYTES - size(item_of("")) - 5))
    assert size(largest) == MAX_ROW_BYTES
    with closing(StashStore(stash_url)) as store:
        assert store.max_row_bytes == len(largest.key) + len(largest.value)
        begin(store, (*rows_of(17, items=3), largest))
    catalog = stash_catalog(stash_url)
    says = r"items id \{ user: 1000 \} would have 16,711,\d{3} bytes at version 18, .* takes 16,711,682"
    for ask in (
        catalog.check_open,
        lambda: check_upgrade(catalog),
        lambda: catalog.open(OpenMode.WRITABLE, holder="me", purpose="a test"),
    ):
        with pytest.raises(BadInput, match=says) as caught:
            ask()
        assert len(str(caught.value)) < 500
    assert (catalog.epoch(), catalog.config("user_version"), catalog.kept_dumps()) == (1, 17, [])
