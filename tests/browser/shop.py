"""The location that the pages show: a shop, with some of everything.

Times are given, so that its history reaches back some hours. Nothing in it is drawn at random.
"""

import json
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import holdfast
from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import OpenMode, persist_catalog
from holdfast.catalog.initialize import Bootstrap
from holdfast.catalog.items import ensure_item
from holdfast.collections import CollectionSpec, StorageController
from holdfast.persist import PersistClient, Schema

ORGANIZATION = uuid.UUID("9c1f0c52-7d3e-4b0a-9a55-0e6b4a1d7c44")
SCRIPT = "<script>document.title='owned'</script>"
IMAGE = "<img src=x onerror=\"document.title='owned'\">"
ODD = f"über „alles“ {SCRIPT} & 'more' 100%/2 #?"
"""A name that a page must escape, in text and in addresses."""
ORDERS = 600
MINUTE = 60_000
_ITEMS = ("apple", "pear", "plum", "quince", "medlar", "cherry")


def build(
    url: str,
    consensus: str | None = None,
    *,
    folder: Path,
    credentials: Mapping[str, str] | None = None,
    odd: bool = True,
) -> None:
    """Fill a new location. `folder` is for the files of a source. Without `odd`, all names are usual ones."""
    blob = None if consensus is None else url
    with (
        PersistClient.open(
            url if blob is None else None, blob=blob, consensus=consensus, credentials=credentials
        ) as client,
        StorageController(client, who="shop") as controller,
    ):
        _orders(controller, IMAGE if odd else "the auditors")
        _products(controller)
        if odd:
            _odd(client)
        holdfast.table(client, "returns", columns={"id": "int64", "why": "string?"}, key=["id"])
        _catalog(client, odd=odd)
    _clicks(url, consensus, folder)


def _orders(controller: StorageController, auditor: str) -> None:
    """A table with a history of six hours, a new writer, and two holds."""
    schema = Schema.of(
        {"id": "int64"},
        {"item": "string", "count": "int32?", "price": "decimal128(10,2)?", "placed": "timestamp(ms,UTC)"},
    )
    controller.create_collection(CollectionSpec("orders", "orders", schema, shards=3))
    writer = controller.writer("orders", purpose="checkout")
    now = int(time.time() * 1000)
    step = 15 * MINUTE
    steps = 24
    lower = 0
    for number in range(steps):
        at = now - (steps - number) * step
        per_step = ORDERS // steps
        new = [_order(id_, at) for id_ in range(number * per_step, (number + 1) * per_step)]
        changed: list[dict[str, Any]] = []
        if number % 4 == 3:
            # Some orders of the step before were changed, and one was cancelled.
            first = (number - 1) * per_step
            before = at - step
            changed = [{**_order(id_, before), "_diff": -1} for id_ in range(first, first + 3)]
            changed += [{**_order(id_, before), "count": 99} for id_ in range(first, first + 2)]
        rows = [{"_diff": 1, **row, "_time": at} for row in (*new, *changed)]
        writer.append(rows, lower, at + 1)
        lower = at + 1
    controller.hold("orders", "monthly report", since=now - 20 * step)
    controller.hold("orders", f"audit by {auditor}", since=now - 8 * step)


def _order(id_: int, at: int) -> dict[str, Any]:
    return {
        "id": id_,
        "item": _ITEMS[id_ % len(_ITEMS)],
        "count": None if id_ % 17 == 0 else id_ % 9 + 1,
        "price": Decimal(id_ % 50 * 37 + 99) / 100,
        "placed": datetime.fromtimestamp(at / 1000, UTC),
    }


def _products(controller: StorageController) -> None:
    """A collection that was handed over once, and that is being filled again."""
    schema = Schema.of({"id": "int64"}, {"name": "string"})
    controller.create_collection(CollectionSpec("products", "products", schema))
    now = int(time.time() * 1000)
    writer = controller.writer("products", purpose="import")
    writer.append([{"id": id_, "name": f"product {id_}", "_time": now - MINUTE} for id_ in range(40)], 0, now)
    controller.renditions.create("products", shards=4)
    controller.hydrate("products", "r2")
    controller.renditions.hand_over("products", "r2")
    controller.renditions.create("products", shards=2)


def _odd(client: PersistClient) -> None:
    """Names and values that a page must escape, cut, or align."""
    columns = {
        "id": "int64",
        SCRIPT: "string?",
        "a very long name of a column that no header should cut in the middle": "float64?",
        "nested": "struct<x: float64, tags: list<string>>?",
        "raw": "binary?",
    }
    with holdfast.table(client, ODD, columns=columns, key=["id"]) as table:
        long = "a very long name of a column that no header should cut in the middle"
        table.append(
            [
                {
                    "id": -1,
                    SCRIPT: IMAGE,
                    long: 1e-9,
                    "nested": {"x": 1.5, "tags": [SCRIPT]},
                    "raw": b"\0\xff",
                },
                {"id": 2**60, SCRIPT: "word " * 200, long: -1234567.25, "nested": None, "raw": None},
                {"id": 3, SCRIPT: None, long: None, "nested": {"x": 0.0, "tags": []}, "raw": b""},
                {"id": 4, SCRIPT: "שלום ‮ 你好\n\ttab", long: float("nan"), "nested": None, "raw": b"x" * 500},
            ]
        )


def _clicks(url: str, consensus: str | None, folder: Path) -> None:
    """What a source feeds, with records that it can't decode."""
    folder.mkdir()
    good = [json.dumps({"id": number, "page": f"/item/{number % 7}"}) for number in range(120)]
    (folder / "monday.jsonl").write_text("\n".join(good) + "\n")
    bad = ['{"id": 1000}', "not JSON", json.dumps({"id": 1001, "page": 5}), f'{{"id": "{SCRIPT}"}}']
    (folder / "tuesday.jsonl").write_text("\n".join(bad) + "\n")
    holdfast.ingest_source(
        url,
        "clicks",
        {"files": {"path": str(folder), "pattern": "*.jsonl"}, "format": {"json": {}}},
        columns={"page": "string"},
        key={"id": "int64"},
        consensus=consensus,
        once=True,
    )


def _catalog(client: PersistClient, *, odd: bool) -> None:
    """A catalog with owners and an audit log."""
    with persist_catalog(client, ORGANIZATION).open(
        OpenMode.WRITABLE, holder="database 1", purpose="serving", bootstrap=Bootstrap(roles=("ada", "grace"))
    ) as catalog:
        for number, name in enumerate(("orders", "products", "clicks", *([ODD] if odd else []))):
            user = ("ada", "grace")[number % 2]
            definition = f"CREATE TABLE {name} (id bigint)"
            catalog.in_transaction(
                lambda tx, name=name, user=user, definition=definition: ensure_item(
                    tx, "holdfast", "public", name, definition=definition, user=user
                )
            )
        catalog.in_transaction(
            lambda tx: ensure_item(
                tx,
                "holdfast",
                "public",
                "daily_sales",
                definition="CREATE VIEW daily_sales AS SELECT item, sum(count) FROM orders GROUP BY item",
                object_type=pb.ObjectType.OBJECT_TYPE_VIEW,
                user="grace",
            )
        )
        catalog.ensure_item(
            "holdfast", "public", "orders", definition="CREATE TABLE orders (id bigint, item text)"
        )
        catalog.ensure_item("holdfast", "public", "old_orders")
        catalog.drop_item("holdfast", "public", "old_orders")
        catalog.set_setting("colour", "red")
