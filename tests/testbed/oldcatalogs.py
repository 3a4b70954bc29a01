"""Generates catalogs at any version of the format, and upgrades them in memory.

`rows_of(version, ...)` yields large catalogs, the same ones for the same seed. `testbed.drawncatalogs` draws
small catalogs with all that the types of a version allow. Both are consistent, and neither uses the upgrade
steps. `upgraded` applies the steps in memory. Every other way to upgrade must give the same result.
"""

import json
import random
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.message import Message

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog.config import USER_VERSION
from holdfast.catalog.objects.codec import Row, RowUpdate
from holdfast.catalog.objects.ids import IdKind
from holdfast.catalog.objects.registry import Kind
from holdfast.catalog.upgrade import STEPS
from holdfast.catalog.upgrade import legacy_json_objects as legacy
from holdfast.catalog.upgrade.objects import JSON_VERSION, collections_of
from holdfast.catalog.version import CATALOG_VERSION

Json = dict[str, Any]


def protobuf_at(version: int, kind: Kind) -> bool:
    """Whether rows of that kind are protobuf at a version."""
    return version > JSON_VERSION or kind not in legacy.OBJECTS


def make_row(version: int, kind: Kind, key: Json, value: Json) -> Row:
    """The row of an object at a version, from what its declaration there says."""
    if protobuf_at(version, kind):
        collection = collections_of(version)[kind]
        return Row(kind.tag + _serialized(collection.key(**key)), _serialized(collection.value(**value)))
    return Row(kind.tag + _json(key), _json(value))


def _serialized(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def _json(found: Json) -> bytes:
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def rows_of(
    version: int,
    *,
    items: int,
    comments: int | None = None,
    storage_usage: int | None = None,
    audit_log: int | None = None,
    seed: int = 0,
) -> Iterator[Row]:
    """A big catalog, streamed: the same rows for the same arguments, none of them held.

    There is a quarter as many comments, storage usages and audit events as items, unless said otherwise, and
    a hundred schemas, roles, and clusters with three replicas each. All in all about 1.75 rows an item.
    """
    quarter = items // 4
    return _Big(version, random.Random(seed)).rows(
        items,
        quarter if comments is None else comments,
        quarter if storage_usage is None else storage_usage,
        quarter if audit_log is None else audit_log,
    )


_FEW = 100
_REPLICAS = 3


class _Big:
    def __init__(self, version: int, chance: random.Random) -> None:
        self._version = version
        self._chance = chance

    def rows(self, items: int, comments: int, storage_usage: int, audit_log: int) -> Iterator[Row]:
        yield self._row(
            Kind.FENCE_TOKEN,
            {},
            {"deploy_generation": 0, "epoch": 1, "holder": "big", "purpose": "made up", "nonce": b"0" * 16},
        )
        yield self._row(Kind.CONFIG, {"key": USER_VERSION}, {"value": self._version})
        yield self._row(Kind.SETTING, {"name": "catalog_content_version"}, {"value": "1"})
        for name in IdKind:
            next_id = 1 + max(items, comments, storage_usage, audit_log, _FEW * _REPLICAS)
            yield self._row(Kind.ID_ALLOCATOR, {"name": str(name)}, {"next_id": next_id})
        yield self._row(Kind.TIMESTAMP, {"timeline": "epoch_milliseconds"}, {"ts": 1_700_000_000_000})
        yield from self._few()
        for number in range(1, items + 1):
            yield self._item(number)
        for number in range(1, comments + 1):
            yield self._comment(number)
        for number in range(1, storage_usage + 1):
            usage = {"size_bytes": self._chance.getrandbits(40), "collected_at_ms": 1_700_000_000_000}
            yield self._row(Kind.STORAGE_USAGE, {"id": number}, {"shard_id": self._hex(), **usage})
        for number in range(1, audit_log + 1):
            yield self._row(Kind.AUDIT_LOG, {"id": number}, self._event(number))

    def _few(self) -> Iterator[Row]:
        """Everything of which there is little."""
        yield self._row(Kind.ROLE, {"id": self._id("system", 1)}, self._role("holdfast_system"))
        public = "p" if self._version == JSON_VERSION else {"public": {}}
        default = {"object_type": self._type("TYPE"), "grantee": public}
        if self._version == JSON_VERSION:
            default |= {"database_id": None, "schema_id": None}
        if self._version >= 19:
            default["grantor"] = public
        yield self._row(Kind.DEFAULT_PRIVILEGE, default, {"privileges": 16})
        system = {"grantee": self._id("system", 1), "grantor": self._id("system", 1)}
        yield self._row(Kind.SYSTEM_PRIVILEGE, system, {"privileges": 448})
        yield self._row(
            Kind.DATABASE, {"id": self._id("user", 1)}, {"name": "big", **self._owned("DATABASE")}
        )
        for number in range(1, _FEW + 1):
            key = {"id": self._id("user", number)}
            yield self._row(Kind.ROLE, key, self._role(f"role {number}"))
            schema = {"database_id": self._id("user", 1), "name": f"schema {number}"}
            yield self._row(Kind.SCHEMA, key, {**schema, **self._owned("SCHEMA")})
            yield self._row(Kind.CLUSTER, key, self._cluster(number))
            for replica in range(_REPLICAS):
                value: Json = {"cluster_id": self._id("user", number), "name": f"r{replica + 1}"}
                if self._version == JSON_VERSION:
                    value["availability_zone"] = None
                of = {"id": self._id("user", (number - 1) * _REPLICAS + replica + 1)}
                yield self._row(Kind.CLUSTER_REPLICA, of, {**value, "size": "1"})

    def _item(self, number: int) -> Row:
        value = {
            "schema_id": self._id("user", 1 + number % _FEW),
            "name": f"item {number}",
            "type": self._type("COLLECTION"),
            "definition": f'{{"key":["id int64"],"shards":1,"value":["{self._hex()} string?"]}}',
        }
        return self._row(Kind.ITEM, {"id": self._id("user", number)}, {**value, **self._owned("COLLECTION")})

    def _comment(self, number: int) -> Row:
        key: Json = {"item_id": self._id("user", number), "column": 1}
        if self._version == JSON_VERSION:
            key = {"object": "item", "id": f"u{number}", "column": 1}
        return self._row(Kind.COMMENT, key, {"comment": f"what {self._hex()} is for"})

    def _event(self, number: int) -> Json:
        return {
            "event_type": pb.AuditLogEventType.AUDIT_LOG_EVENT_TYPE_CREATE,
            "object_type": pb.ObjectType.OBJECT_TYPE_COLLECTION,
            "object_id": f"u{number}",
            "object_name": f"big.schema {1 + number % _FEW}.item {number}",
            "user": f"role {1 + number % _FEW}",
            "occurred_at_ms": 1_700_000_000_000 + number,
        }

    def _role(self, name: str) -> Json:
        if self._version < 16:
            return {"name": name}
        return {"name": name, "attributes": {"inherit": True, "login": True}}

    def _cluster(self, number: int) -> Json:
        value: Json = {"name": f"cluster {number}", **self._owned("CLUSTER")}
        if self._version >= 17:
            value["managed"] = {"size": "1", "replication_factor": _REPLICAS}
        return value

    def _owned(self, object_type: str) -> Json:
        if self._version < 18:
            return {}
        owner = self._id("user", 1)
        privileges = 15 if object_type == "COLLECTION" else 48
        return {
            "owner_id": owner,
            "privileges": [{"grantee": owner, "grantor": owner, "privileges": privileges}],
        }

    def _id(self, space: str, number: int) -> Any:
        return f"{space[0]}{number}" if self._version == JSON_VERSION else {space: number}

    def _type(self, name: str) -> Any:
        return name.lower() if self._version == JSON_VERSION else f"OBJECT_TYPE_{name}"

    def _hex(self) -> str:
        return f"{self._chance.getrandbits(128):032x}"

    def _row(self, kind: Kind, key: Json, value: Json) -> Row:
        return make_row(self._version, kind, key, value)


class StoredRows:
    """Rows in memory, as a step reads them."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: dict[Kind, list[Row]] = {}
        for row in rows:
            self._rows.setdefault(row.kind, []).append(row)

    def rows(self, kind: Kind) -> Iterator[Row]:
        """Those of a kind."""
        return iter(self._rows.get(kind, ()))


def applied(rows: Iterable[Row], updates: Iterable[RowUpdate]) -> tuple[Row, ...]:
    """The rows after changes that must fit: only what is there goes, and each key has one row."""
    found = {row.key: row for row in rows}
    for update in sorted(updates, key=lambda update: update.diff):
        row = update.row
        if update.diff == -1:
            assert found.pop(row.key) == row, f"{row} is retracted, but was not there"
        else:
            assert update.diff == 1
            assert found.setdefault(row.key, row) is row, f"{row} is added, but its key is there"
    return tuple(found.values())


def upgraded(rows: Iterable[Row], source: int, target: int = CATALOG_VERSION) -> tuple[Row, ...]:
    """A catalog at `source` taken to `target`, its version too."""
    found = tuple(rows)
    for version in range(source, target):
        old, new = (
            make_row(each, Kind.CONFIG, {"key": USER_VERSION}, {"value": each})
            for each in (version, version + 1)
        )
        changes = [*STEPS[version].updates(StoredRows(found)), RowUpdate(old, -1), RowUpdate(new, 1)]
        found = applied(found, changes)
    return found
