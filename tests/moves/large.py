"""Moves a large catalog both ways, in a separate process: `python -m moves.large FOLDER ITEMS AUDITS`.

Prints the peak memory in MB after its start and after each move, and the number of rows. Exits with 1 if the
two stores don't end with the same contents.
"""

import json
import resource
import sys
import time
import uuid
from collections.abc import Iterable
from contextlib import closing
from hashlib import blake2b
from pathlib import Path

from holdfast.catalog import persist_catalog, stash_catalog
from holdfast.catalog.fence import FenceToken
from holdfast.catalog.move.linked import linked_catalog
from holdfast.catalog.move.migration import BackendMigration, Verify
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.objects.codec import Row, RowUpdate
from holdfast.catalog.replacement import is_content
from holdfast.catalog.stores.preamble import read_preamble
from holdfast.catalog.stores.stash import StashStore
from holdfast.catalog.stores.store import CatalogStore
from holdfast.catalog.version import CATALOG_VERSION
from holdfast.persist import PersistClient, PersistConfig
from testbed.oldcatalogs import rows_of

ORG = uuid.UUID("11111111-2222-3333-4444-555555555555")


def digest(rows: Iterable[Row]) -> tuple[int, int]:
    """How many rows, and the sum of their hashes."""
    count = total = 0
    for key, value in rows:
        count += 1
        hashed = blake2b(len(key).to_bytes(8, "big") + key + value, digest_size=32)
        total += int.from_bytes(hashed.digest(), "big")
    return count, total % (1 << 256)


def contents(store: CatalogStore) -> tuple[int, int]:
    """The digest of what a store holds of the catalog."""
    with closing(store.another(purpose="a look at the contents")) as opened:
        return digest(row for row in opened.rows(opened.upper() - 1) if is_content(row))


def peak_mb() -> int:
    """The most memory that this process ever had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main() -> int:
    folder, items, audits = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    stash_url = f"sqlite://{folder}/stash.sqlite"
    with closing(StashStore(stash_url)) as stash:
        fence = read_preamble(stash, 0).fence(FenceToken(0, 1, "a test", "a large catalog"))
        rows = rows_of(CATALOG_VERSION, items=items, audit_log=audits)
        stash.append(fence, 0)
        stash.append((RowUpdate(row, 1) for row in rows if is_content(row)), 1)
    config = PersistConfig(maintenance="inline")
    with PersistClient.open(f"file://{folder}/persist", config=config) as client:
        persist = persist_catalog(client, ORG)
        catalog = linked_catalog(stash_catalog(stash_url), persist)
        before = contents(StashStore(stash_url))
        told = {"rows": before[0], "start_mb": peak_mb()}
        for number, target in enumerate((Backend.PERSIST, Backend.STASH, Backend.PERSIST)):
            started = time.monotonic()
            with BackendMigration(
                catalog, migration_id=f"m{number}", target=target, verify=Verify.COMPARE, holder="a test"
            ) as migration:
                migration.run()
            told[f"move_{number}_mb"] = peak_mb()
            told[f"move_{number}_s"] = round(time.monotonic() - started, 1)
            assert catalog.source_of_truth() is target
            assert contents(catalog.stores.of(target)) == before, f"{target} has other contents"
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
