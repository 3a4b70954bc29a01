"""A StorageCollection gets the contents of a snapshot while a reader uses it, on a real API server."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.persist import Progress, Schema
from testbed.errors import KubectlError
from unit.collections.snapshots import snapshot

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
FLIGHTS = "storagecollection/flights"
COLUMNS = [{"name": "id", "type": "int64"}, {"name": "name", "type": "string"}]
SCHEMA = Schema.of(key={"id": "int64"}, value={"name": "string"})


def counted(table: pa.Table) -> Counter[tuple[int, str]]:
    counts: Counter[tuple[int, str]] = Counter()
    for row in table.to_pylist():
        counts[row["id"], row["name"]] += row["_diff"]
    return counts


def patch(world: Any, **spec: Any) -> None:
    world.patch(FLIGHTS, json.dumps({"spec": spec}))


def test_a_collection_is_restored_while_it_is_read(
    world: Any, make_catalog: Make, make_collection: Make, tmp_path: Path
) -> None:
    volume = tmp_path / "volume" / world.namespace
    monday, tuesday = [(1, "one"), (2, "two"), (2, "two")], [(2, "two"), (3, "three")]
    snapshot(volume / "monday", monday, SCHEMA)
    snapshot(tmp_path / "tuesday", tuesday, SCHEMA)
    there = make_catalog()
    world.start()
    first = {"snapshot": (volume / "monday").as_uri()}
    world.apply(there, make_collection(columns=COLUMNS, restoreFrom=first))
    # It begins with the snapshot.
    world.wait_for(FLIGHTS, ".status.restore.snapshot", first["snapshot"])
    world.wait_ready(FLIGHTS)
    status = world.status(FLIGHTS)
    assert status["restore"]["rendition"] == status["activeRendition"] == status["handover"]["to"]
    world.events("Restored")
    url = world.volume(there["spec"]["organizationId"])
    with world.controller(url) as controller:
        collection = status["collectionId"]
        writer = controller.writer(collection, purpose="application")
        upper = writer.upper()
        writer.append([{"id": 9, "name": "live"}], upper, upper + 10)
        with controller.reader(collection, purpose="follower") as reader:
            begun = reader.snapshot()
            heard = counted(begun.to_table())
            assert heard == Counter([*monday, (9, "live")])
            listen = reader.listen(begun.as_of)
            # Another value restores again, when it can be read; until then all is as it was.
            missing = (volume / "tuesday").as_uri()
            patch(world, restoreFrom={"snapshot": missing})
            message = world.wait_stalled(FLIGHTS, "RestoreFailed")
            assert f"{missing} can't be restored" in message
            assert "\n" not in message
            assert world.status(FLIGHTS)["activeRendition"] == status["activeRendition"]
            shutil.copytree(tmp_path / "tuesday", volume / "tuesday")
            world.wait_for(FLIGHTS, ".status.restore.snapshot", missing)
            at = world.status(FLIGHTS)["restore"]["at"]
            upper = writer.upper()
            writer.append([{"id": 10, "name": "later"}], upper, upper + 10)
            while listen.frontier <= max(at, upper):
                for event in listen.next(10.0):
                    if not isinstance(event, Progress):
                        heard.update(counted(event.table))
            expected = Counter([*tuesday, (10, "later")])
            assert +heard == expected
            assert counted(reader.snapshot().to_table()) == expected
            assert counted(reader.snapshot(begun.as_of).to_table()) == Counter([*monday, (9, "live")])
    world.events("Restored", 2)
    # Neither to remove it nor to name again what was restored once changes anything.
    active = world.status(FLIGHTS)["activeRendition"]
    for asked in (None, first, {"snapshot": missing}):
        patch(world, restoreFrom=asked)
        world.wait_for(FLIGHTS, ".status.observedGeneration", world.get(FLIGHTS)["metadata"]["generation"])
        world.wait_ready(FLIGHTS)
        assert world.status(FLIGHTS)["activeRendition"] == active
    assert len(world.events("Restored", 2)) == 2
    with pytest.raises(KubectlError, match="must be a URL like file:///folder/snapshot"):
        patch(world, restoreFrom={"snapshot": "gs://bucket/snapshot"})
