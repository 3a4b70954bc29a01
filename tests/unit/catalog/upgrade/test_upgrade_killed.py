"""Kills real processes in the middle of an upgrade."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.catalog import CATALOG_VERSION, MIN_VERSION, OpenableCatalog, OpenMode, config
from holdfast.catalog.one_store import persist_catalog, stash_catalog
from holdfast.catalog.stores.persist import CatalogShard, catalog_shard_id
from holdfast.catalog.stores.stash import StashStore
from holdfast.catalog.stores.store import CatalogStore
from holdfast.persist import PersistClient
from testbed.oldcatalogs import rows_of, upgraded
from testbed.oldstores import ORG, begin, but_fence, contents

ITEMS = 300
PROGRAM = Path(__file__).with_name("upgrading_process.py")


@pytest.mark.parametrize("engine", ["persist", "stash"])
@pytest.mark.long
def test_an_upgrade_goes_on_after_a_kill(engine: str, tmp_path: Path) -> None:
    url = tmp_path.as_uri() if engine == "persist" else f"sqlite://{tmp_path}/stash.db"
    catalog, store = found(url)
    rows = tuple(rows_of(MIN_VERSION, items=ITEMS))
    begin(store, rows)
    reached = MIN_VERSION
    for version in (MIN_VERSION + 1, MIN_VERSION + 3):
        if reached >= version:
            continue  # the first process went on as far as this before the signal came
        kill_at(url, version)
        reached = catalog.config(config.USER_VERSION)
        assert reached is not None
        # It may have gone on until the signal came.
        assert reached >= version
        assert contents(store) == but_fence(upgraded(rows, MIN_VERSION, reached))
    with catalog.open(OpenMode.WRITABLE, holder="after", purpose="test") as opened:
        assert opened.catalog_version == CATALOG_VERSION
        opened.confirm_leadership()
    assert contents(store) == but_fence(upgraded(rows, MIN_VERSION))
    assert MIN_VERSION in {kept.version for kept in catalog.kept_dumps()}
    store.close()


def kill_at(url: str, version: int) -> None:
    """Upgrade in a process that is killed once it is at a version."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), url, str(ORG)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as lines:
        assert any(f" to {version} in " in line for line in lines)
        process.kill()
    process.wait(60)


def found(url: str) -> tuple[OpenableCatalog, CatalogStore]:
    """The catalog at a URL, and its rows."""
    if url.startswith("sqlite:"):
        return stash_catalog(url), StashStore(url)
    client = PersistClient.open(url)
    return persist_catalog(client, ORG), CatalogShard(client, catalog_shard_id(ORG), purpose="test")
