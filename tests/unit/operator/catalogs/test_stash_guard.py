"""Writes on persist by a process whose catalog is in the stash, after somebody took that."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.catalog import OpenableCatalog, OpenMode
from holdfast.catalog.move.emergency import emergency_catalog
from holdfast.catalog.move.linked import linked_catalog
from holdfast.catalog.move.truth import Backend
from holdfast.errors import Fenced
from holdfast_operator.catalogs.linking import StashGuard
from testbed.linkedstores import WHO, LinkedPlace


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LinkedPlace]:
    made = LinkedPlace(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("emergency", [True, False])
def test_nothing_is_guarded_after_somebody_took_the_catalog_over(
    place: LinkedPlace, *, emergency: bool
) -> None:
    both = linked_catalog(place.stash(), place.persist(), backend=Backend.STASH, sleep=lambda _: None)
    with both.open(OpenMode.WRITABLE, **WHO) as mine:
        guard = StashGuard(both.stores, mine)
        guard()
        # Only the first of them leaves persist as it is.
        by: OpenableCatalog = emergency_catalog(place.stash()) if emergency else both
        with by.open(OpenMode.WRITABLE, **WHO) as theirs:
            theirs.ensure_item("holdfast", "public", "x")
        for _ in range(2):
            with pytest.raises(Fenced):
                guard()
        guard.close()
