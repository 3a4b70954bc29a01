"""A process that follows a catalog and prints each change that it receives, one JSON line for each call.

Arguments: the address of the catalog as JSON, and the file that stores its progress. It opens the catalog for
reading, continues from the progress in the file, and ends only when it is killed. If a store does not
respond, it tries again.
"""

import json
import os
import sys
from pathlib import Path

from conformance.catalogs import open_at
from holdfast.catalog import OpenMode
from holdfast.catalog.objects.codec import encode
from holdfast.errors import StorageError

PARENT = os.getppid()


def main(address: str, kept: Path) -> None:
    since = int(kept.read_text()) if kept.exists() else 0
    with open_at(json.loads(address)).open(OpenMode.READ_ONLY) as catalog:
        subscription = catalog.subscribe(since)
        print("following", flush=True)
        while os.getppid() == PARENT:
            try:
                changes = subscription.next(5.0)
            except StorageError:
                continue
            # Given out first: a line that was cut off with the process is printed again by the next one.
            for change in changes:
                row = encode(change.collection, change.object.key, change.object.value)
                line = [change.time, change.collection.name, row.key.hex(), row.value.hex(), change.diff]
                print(json.dumps(line), flush=True)
            beside = kept.with_suffix(".new")
            beside.write_text(str(subscription.frontier))
            beside.replace(kept)


main(sys.argv[1], Path(sys.argv[2]))
