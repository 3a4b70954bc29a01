"""A catalog for people: objects with owners and privileges, the audit log, and the difference of two times.

- The times of a catalog count its commits. Who committed, and when, is in the log of its shard.
- Objects are read in the version of their own format, so every catalog that can be dumped is shown.
- Definitions and settings may contain secrets. What looks like one is replaced here, before anything else
  sees it. Two times are compared before that, so a changed secret is a change.
- Everything is bounded: at most so many objects of each kind are kept, and the others are counted.
"""

import heapq
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.catalog import catalog_shard_id
from holdfast.catalog.config import USER_VERSION
from holdfast.catalog.objects.codec import TAG_BYTES, Row, decode
from holdfast.catalog.objects.registry import CONFIGS, FENCE_TOKENS, OBJECT_TYPES, Kind
from holdfast.catalog.privileges import Privilege
from holdfast.catalog.stores.persist import SCHEMA, CatalogShard
from holdfast.catalog.upgrade import objects
from holdfast.catalog.version import CATALOG_VERSION
from holdfast.collections.who import parse_who
from holdfast.console.facts.rows import Cell, TimeRefused, cell_of
from holdfast.errors import AsOfTooEarly, BadInput
from holdfast.persist import PersistClient
from holdfast.persist.state.machine import refresh_all
from holdfast.persist.state.state import ShardState
from holdfast.tables.moments import milliseconds
from holdfast.text import SECRET_OPTION, without_passwords

PURPOSE: Final = "holdfast console"
MOST_OBJECTS: Final = 500
"""So many objects of one kind are shown. A search finds the others."""
MOST_EVENTS: Final = 200
MOST_CHANGES: Final = 1000
_MOST_SHARDS: Final = 5000
_HIDDEN: Final = "***"
_QUOTED: Final = re.compile(
    r"(?i)\b(\w*(?:password|secret|token|access[_ ]key|private[_ ]key|credential)\w*[\"']?"
    r"\s*(?:[=:]|to|value|as)?\s*)"
    r"('(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\")"
)
_SECRET_TYPE: Final = "OBJECT_TYPE_SECRET"  # noqa: S105 - the name of a type

SHOWN: Final[Mapping[Kind, str]] = {
    Kind.DATABASE: "Databases",
    Kind.SCHEMA: "Schemas",
    Kind.ITEM: "Items",
    Kind.ROLE: "Roles",
    Kind.CLUSTER: "Clusters",
    Kind.CLUSTER_REPLICA: "Replicas",
    Kind.DEFAULT_PRIVILEGE: "Default privileges",
    Kind.SYSTEM_PRIVILEGE: "System privileges",
    Kind.SYSTEM_CONFIGURATION: "System configuration",
    Kind.SETTING: "Settings",
}
"""The kinds that have a list of their own, with its title."""

_NOT_COMPARED: Final = frozenset({Kind.STORAGE_USAGE, Kind.TIMESTAMP, Kind.ID_ALLOCATOR, Kind.AUDIT_LOG})
"""Kinds that change with nearly every commit, and say nothing that the others don't."""


@dataclass(frozen=True, slots=True)
class Privileges:
    """What a role may do, and who granted it."""

    grantee: str
    grantor: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """An object. `path` is its name with those of its schema and database. `fields` are its other values."""

    kind: str
    id: str
    name: str
    path: str
    type: str
    owner: str
    privileges: tuple[Privileges, ...]
    fields: tuple[tuple[str, Cell], ...]
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """The objects of one kind that a search found. `found` counts all of them, and `total` all objects."""

    kind: str
    title: str
    objects: tuple[ObjectFacts, ...]
    found: int
    total: int


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """An entry of the audit log."""

    id: int
    at_ms: int
    user: str
    event: str
    object_type: str
    object_id: str
    object_name: str
    details: tuple[tuple[str, Cell], ...]


@dataclass(frozen=True, slots=True)
class CatalogCommit:
    """A commit: its time in the catalog, when it was made, and by which process. None if it isn't known."""

    time: int
    at_ms: int | None
    host: str
    who: str


@dataclass(frozen=True, slots=True)
class CatalogFacts:
    """A catalog as of one of its times."""

    shard_id: str
    version: int
    epoch: int | None
    holder: str
    as_of: int
    groups: tuple[Group, ...]
    events: tuple[AuditEvent, ...]
    all_events: int


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field of an object that differs. None: the object doesn't have it."""

    name: str
    before: Cell | None
    after: Cell | None


@dataclass(frozen=True, slots=True)
class CatalogObjectChange:
    """An object that was added (`sign` "+"), removed ("-") or changed ("~") between two times."""

    sign: str
    kind: str
    id: str
    path: str
    fields: tuple[FieldChange, ...]


@dataclass(frozen=True, slots=True)
class CatalogDifference:
    """What changed between two times: at most `MOST_CHANGES` objects, and the numbers of all of them."""

    start: int
    end: int
    changes: tuple[CatalogObjectChange, ...]
    added: int
    removed: int
    changed: int
    events: tuple[AuditEvent, ...]

    @property
    def is_whole(self) -> bool:
        """Whether all changes are in `changes`."""
        return len(self.changes) == self.added + self.removed + self.changed


@dataclass(frozen=True, slots=True)
class CatalogReach:
    """The times of a catalog that can be read: from `since` up to, and without, `upper`."""

    shard_id: str
    since: int
    upper: int

    @property
    def latest(self) -> int:
        """The time of the latest commit."""
        return self.upper - 1

    def time(self, given: str) -> int:
        """The time that a text means, or the latest one if it is empty. Raises `TimeRefused`."""
        if not given.strip():
            return self.latest
        text = given.strip()
        if not (text.isascii() and text.isdecimal()):
            raise TimeRefused(
                f"{text[:40]!r} is not a time of the catalog: these count its commits", self.latest
            )
        asked = milliseconds(text)
        if asked < self.since:
            raise TimeRefused(
                f"the catalog can't be read at {asked}, because its earlier versions were compacted",
                self.since,
            )
        if asked >= self.upper:
            raise TimeRefused(
                f"the catalog has no commit {asked} yet: its latest is {self.latest}", self.latest
            )
        return asked


def catalogs_in(client: PersistClient, known: Iterable[str] = ()) -> tuple[str, ...]:
    """The shards of a location that are catalogs. `known` are shards that certainly aren't.

    Raises `BadInput` if there are too many other shards to look at each of them.
    """
    known = frozenset(known)
    others = [shard for shard in client.shards() if shard not in known]
    if len(others) > _MOST_SHARDS:
        raise BadInput(
            f"the location has {len(others):,} shards that belong to no collection",
            hint="name the catalog: add ?catalog= with the id of its organization to the address",
        )
    states = refresh_all([client.session.machine(shard) for shard in others])
    return tuple(state.shard_id for state in states if is_catalog_shard(state))


def is_catalog_shard(state: ShardState) -> bool:
    """Whether a shard is a catalog."""
    return state.exists and not state.finalized and state.schema.codec == SCHEMA.codec


def shard_of(given: str) -> str:
    """The shard of a catalog, given by its shard or by the id of its organization. Raises `BadInput`."""
    if re.fullmatch(r"s[0-9a-f-]{36}", given):
        return given
    return catalog_shard_id(given[:100])


@contextmanager
def reading_catalog(client: PersistClient, shard_id: str) -> Iterator[tuple[CatalogShard, CatalogReach]]:
    """The store of a catalog, and the times that can be read. Raises `BadInput` if there is no catalog."""
    if not client.exists(shard_id):
        raise BadInput(
            "the location has no such catalog", hint="'holdfast catalog init' makes one, or check its id"
        )
    with closing(CatalogShard(client, shard_id, purpose=PURPOSE)) as store:
        upper, since = store.upper(), store.since
        if not upper:
            raise BadInput(
                "the catalog was never opened for writing", hint="'holdfast catalog init' initializes it"
            )
        try:
            yield store, CatalogReach(shard_id, since, upper)
        except AsOfTooEarly as error:
            message = (
                f"the catalog can't be read at {error.as_of}, because its earlier versions were compacted"
            )
            raise TimeRefused(message, error.since) from None


def commits(client: PersistClient, reach: CatalogReach, most: int = MOST_EVENTS) -> tuple[CatalogCommit, ...]:
    """The last commits that can be read, in order."""
    first = max(reach.since, reach.upper - most)
    found: dict[int, CatalogCommit] = {}
    for row in client.appends(reach.shard_id, first).to_pylist():
        time = row["upper"] - 1
        if row["lower"] <= time and time < reach.upper:
            found[time] = CatalogCommit(
                time, row["wall_ms"], row["hostname"] or "", parse_who(row["purpose"] or "").program
            )
    return tuple(found.get(time) or CatalogCommit(time, None, "", "") for time in range(first, reach.upper))


def catalog_at(store: CatalogShard, as_of: int, search: str = "", most: int = MOST_OBJECTS) -> CatalogFacts:
    """The catalog as of a time that can be read. `search` chooses objects whose path or owner contains it."""
    names = _Names.read(store, as_of)
    wanted = search.strip().casefold()
    totals: dict[Kind, int] = dict.fromkeys(SHOWN, 0)
    found: dict[Kind, int] = dict.fromkeys(SHOWN, 0)
    # The first ones in the order of their paths. The greatest one of them is dropped for a smaller one.
    kept: dict[Kind, list[tuple[_Reversed, ObjectFacts]]] = {kind: [] for kind in SHOWN}
    for row in store.rows(as_of, SHOWN):
        kind = row.kind
        totals[kind] += 1
        one = names.facts(row)
        if wanted and not any(wanted in each.casefold() for each in (one.path, one.owner, one.type, one.id)):
            continue
        found[kind] += 1
        entry = (_Reversed((one.path.casefold(), one.id)), one)
        if len(kept[kind]) < most:
            heapq.heappush(kept[kind], entry)
        else:
            heapq.heappushpop(kept[kind], entry)
    groups = tuple(
        Group(
            OBJECT_TYPES[kind].name,
            title,
            tuple(one for _, one in sorted(kept[kind], key=lambda each: each[0], reverse=True)),
            found[kind],
            totals[kind],
        )
        for kind, title in SHOWN.items()
    )
    events, number = _events(store, as_of, names)
    return CatalogFacts(store.place, names.version, names.epoch, names.holder, as_of, groups, events, number)


def catalog_difference(
    store: CatalogShard, start: int, end: int, most: int = MOST_CHANGES
) -> CatalogDifference:
    """What changed between two times that can be read, `start` before `end`. Raises `BadInput` otherwise."""
    if start > end:
        raise BadInput(f"a difference must go forward in time, not from {start} to {end}")
    before, after = _Names.read(store, start), _Names.read(store, end)
    net: dict[bytes, dict[bytes, int]] = {}
    events: list[Row] = []
    for _, updates in store.changes(start + 1, end + 1):
        for row, diff in updates:
            if row.key[:2] == Kind.AUDIT_LOG.tag and diff > 0:
                events.append(row)
            if row.kind not in _NOT_COMPARED:
                values = net.setdefault(row.key, {})
                values[row.value] = values.get(row.value, 0) + diff
    found: list[CatalogObjectChange] = []
    counts = {"+": 0, "-": 0, "~": 0}
    for key, values in sorted(net.items()):
        old = next((value for value, diff in values.items() if diff < 0), None)
        new = next((value for value, diff in values.items() if diff > 0), None)
        if old is None and new is None:
            continue
        change = _change(
            None if old is None else before.json(Row(key, old)),
            None if new is None else after.json(Row(key, new)),
            (before, after),
        )
        counts[change[0]] += 1
        if len(found) < most:
            names = before if new is None else after
            facts = names.facts(Row(key, new if new is not None else old or b""))
            found.append(CatalogObjectChange(change[0], facts.kind, facts.id, facts.path, change[1]))
    found.sort(key=lambda each: (_rank(each.kind), each.path.casefold(), each.id))
    shown = tuple(
        sorted((_event(after.json(row)) for row in events), key=lambda each: -each.id)[:MOST_EVENTS]
    )
    return CatalogDifference(start, end, tuple(found), counts["+"], counts["-"], counts["~"], shown)


@dataclass(frozen=True, slots=True)
class _Json:
    """A row as JSON. The secrets in it are still there."""

    kind: Kind
    key: dict[str, Any]
    value: dict[str, Any]


class _Reversed(tuple):  # type: ignore[type-arg]
    """A tuple with the opposite order."""

    __slots__ = ()

    def __lt__(self, other: tuple[Any, ...]) -> bool:
        return tuple(self) > tuple(other)


@dataclass
class _Names:
    """What the ids of a catalog stand for at one time, and the version of its format."""

    version: int = CATALOG_VERSION
    epoch: int | None = None
    holder: str = ""
    roles: dict[str, str] = field(default_factory=dict)
    databases: dict[str, str] = field(default_factory=dict)
    schemas: dict[str, tuple[str, str]] = field(default_factory=dict)
    clusters: dict[str, str] = field(default_factory=dict)
    comments: dict[tuple[str, str], str] = field(default_factory=dict)

    @classmethod
    def read(cls, store: CatalogShard, as_of: int) -> "_Names":
        names = cls()
        for row in store.rows(as_of, [Kind.CONFIG, Kind.FENCE_TOKEN]):
            if row.kind is Kind.CONFIG:
                config = decode(CONFIGS, row)
                if config.key.key == USER_VERSION:
                    names.version = config.value.value
            else:
                token = decode(FENCE_TOKENS, row).value
                names.epoch, names.holder = token.epoch, token.holder
        kinds = [Kind.ROLE, Kind.DATABASE, Kind.SCHEMA, Kind.CLUSTER, Kind.COMMENT]
        for row in store.rows(as_of, kinds):
            one = names.json(row)
            id_ = _id(one.key.get("id"))
            name = str(one.value.get("name", ""))
            match one.kind:
                case Kind.ROLE:
                    names.roles[id_] = name
                case Kind.DATABASE:
                    names.databases[id_] = name
                case Kind.SCHEMA:
                    names.schemas[id_] = (_id(one.value.get("database_id")), name)
                case Kind.CLUSTER:
                    names.clusters[id_] = name
                case _:
                    if "column" not in one.key:
                        about = next((each for each in one.key.items() if isinstance(each[1], dict)), None)
                        if about is not None:
                            names.comments[about[0], _id(about[1])] = str(one.value.get("comment", ""))
        return names

    def json(self, row: Row) -> _Json:
        key, value = objects.decode(self.version, row)
        return _Json(row.kind, key, value)

    def facts(self, row: Row) -> ObjectFacts:
        one = without_secrets(self.json(row))
        id_ = _id(one.key.get("id"))
        name = str(one.value.get("name", "")) or self._named(one)
        about = _COMMENTED.get(one.kind, "")
        return ObjectFacts(
            OBJECT_TYPES[one.kind].name,
            id_,
            name,
            self._path(one, name),
            _type_name(str(one.value.get("type", ""))),
            self.role(one.value.get("owner_id")),
            tuple(map(self._privileges, one.value.get("privileges", ())))
            if isinstance(one.value.get("privileges"), list)
            else (),
            tuple((label, _cell(value)) for label, value in self._fields(one) if value != ""),
            self.comments.get((about, id_), "") if about else "",
        )

    def shown(self, name: str, value: Any) -> Any:
        """A value of a field, with names in the place of ids."""
        match name:
            case "owner_id":
                return self.role(value)
            case "type":
                return _type_name(str(value))
            case "database_id":
                return self.databases.get(_id(value), _id(value))
            case "schema_id":
                database_id, schema = self.schemas.get(_id(value), ("", _id(value)))
                return ".".join(filter(None, [self.databases.get(database_id, ""), schema]))
            case "cluster_id":
                return self.clusters.get(_id(value), _id(value))
            case "privileges" if isinstance(value, list):
                given = map(self._privileges, value)
                return "; ".join(f"{each.grantee}: {', '.join(each.names)}" for each in given)
            case "privileges":
                return ", ".join(privilege_names(value))
            case "memberships":
                return ", ".join(self.role(each.get("role")) for each in value)
            case _:
                return value

    def role(self, id_: Any) -> str:
        """The name of a role, or its id if there is none."""
        text = _id(id_)
        return "PUBLIC" if text == "p" else self.roles.get(text, text)

    def _privileges(self, given: Mapping[str, Any]) -> Privileges:
        return Privileges(
            self.role(given.get("grantee")),
            self.role(given.get("grantor")),
            privilege_names(given.get("privileges")),
        )

    def _named(self, one: _Json) -> str:
        """A name for an object that has none of its own."""
        match one.kind:
            case Kind.DEFAULT_PRIVILEGE:
                type_ = _type_name(str(one.key.get("object_type", "")))
                grantee, grantor = (self.role(one.key.get(each)) for each in ("grantee", "grantor"))
                of = "any role" if _id(one.key.get("grantor")) == "p" else grantor
                return f"{grantee} on each new {type_} of {of}"
            case Kind.SYSTEM_PRIVILEGE:
                return self.role(one.key.get("grantee"))
            case _:
                name = one.key.get("name", one.key.get("key"))
                return str(name) if name is not None else json.dumps(one.key, ensure_ascii=False)

    def _path(self, one: _Json, name: str) -> str:
        match one.kind:
            case Kind.SCHEMA:
                database = self.databases.get(_id(one.value.get("database_id")), "")
                return f"{database}.{name}" if database else name
            case Kind.ITEM:
                database_id, schema = self.schemas.get(_id(one.value.get("schema_id")), ("", ""))
                return ".".join(filter(None, [self.databases.get(database_id, ""), schema, name]))
            case Kind.CLUSTER_REPLICA:
                return f"{self.clusters.get(_id(one.value.get('cluster_id')), '?')}.{name}"
            case _:
                return name

    def _fields(self, one: _Json) -> Iterator[tuple[str, Any]]:
        """The values that are shown apart from name, type, owner and privileges."""
        for name, value in one.value.items():
            if name in ("name", "owner_id", "type") or (name == "privileges" and isinstance(value, list)):
                continue
            match name:
                case "privileges":
                    yield "privileges", self.shown(name, value)
                case "memberships":
                    yield "member of", self.shown(name, value)
                case "attributes":
                    yield (
                        "attributes",
                        ", ".join(key.replace("_", " ") for key, is_set in value.items() if is_set),
                    )
                case "managed":
                    zones = ", ".join(value.get("availability_zones", ()))
                    yield "size", value.get("size")
                    yield "replicas", value.get("replication_factor")
                    if zones:
                        yield "zones", zones
                case "unmanaged" | "schema_id" | "database_id" | "cluster_id":
                    continue
                case _:
                    yield name.replace("_", " "), value


_COMMENTED: Final[Mapping[Kind, str]] = {
    Kind.CLUSTER: "cluster_id",
    Kind.CLUSTER_REPLICA: "cluster_replica_id",
    Kind.DATABASE: "database_id",
    Kind.SCHEMA: "schema_id",
    Kind.ITEM: "item_id",
    Kind.ROLE: "role_id",
}
"""The field of the key of a comment that names an object of a kind."""


def privilege_names(bits: Any) -> tuple[str, ...]:
    """The names of a set of privileges, which JSON has as a number in text."""
    number = int(bits or 0)
    names = [each.name.replace("_", " ") for each in Privilege if each & number and each.name]
    rest = number & ~int(sum(Privilege))
    return (*names, *([f"bits {rest}"] if rest else ()))


def without_secrets(one: _Json) -> _Json:
    """The same object without what may be a secret."""
    value = dict(one.value)
    if value.get("type") == _SECRET_TYPE and "definition" in value:
        value["definition"] = _HIDDEN
    name = str(one.key.get("name", ""))
    if one.kind in (Kind.SETTING, Kind.SYSTEM_CONFIGURATION) and SECRET_OPTION.fullmatch(name):
        value["value"] = _HIDDEN
    return _Json(one.kind, one.key, _masked(value))


def _masked(value: Any) -> Any:
    """JSON without passwords in URLs, and without texts in quotes after a word for a secret."""
    match value:
        case str():
            return without_passwords(_QUOTED.sub(rf"\1'{_HIDDEN}'", value))
        case dict():
            return {
                name: _HIDDEN
                if isinstance(each, str) and each and SECRET_OPTION.fullmatch(name)
                else _masked(each)
                for name, each in value.items()
            }
        case list():
            return [_masked(each) for each in value]
        case _:
            return value


def _change(
    before: _Json | None, after: _Json | None, names: "tuple[_Names, _Names]"
) -> tuple[str, tuple[FieldChange, ...]]:
    """What kind of a change it is, and the fields that differ, with the names that they had."""
    old, new = ({} if each is None else each.value for each in (before, after))
    shown_old, shown_new = (
        {}
        if each is None
        else {name: own.shown(name, value) for name, value in without_secrets(each).value.items()}
        for each, own in zip((before, after), names, strict=True)
    )
    fields = tuple(
        FieldChange(
            name.removesuffix("_id").replace("_", " "),
            _cell(shown_old[name]) if name in shown_old else None,
            _cell(shown_new[name]) if name in shown_new else None,
        )
        for name in dict.fromkeys([*old, *new])
        if name not in old or name not in new or old[name] != new[name]
    )
    return ("+" if before is None else "-" if after is None else "~"), fields


def _events(store: CatalogShard, as_of: int, names: _Names) -> tuple[tuple[AuditEvent, ...], int]:
    """The last entries of the audit log, latest first, and the number of all."""
    last: list[tuple[int, Row]] = []
    number = 0
    audit = objects.collections_of(names.version).get(Kind.AUDIT_LOG)

    def number_of(row: Row) -> int:
        if audit is None:
            return int(names.json(row).key.get("id", 0))
        return int(audit.key.FromString(row.key[TAG_BYTES:]).id)

    for row in store.rows(as_of, [Kind.AUDIT_LOG]):
        number += 1
        # The number of the entry is a varint, so the bytes of keys have another order.
        entry = (number_of(row), row)
        if len(last) < MOST_EVENTS:
            heapq.heappush(last, entry)
        else:
            heapq.heappushpop(last, entry)
    return tuple(_event(names.json(row)) for _, row in sorted(last, reverse=True)), number


def _event(one: _Json) -> AuditEvent:
    value = without_secrets(one).value
    return AuditEvent(
        int(one.key.get("id", 0)),
        int(value.get("occurred_at_ms", 0)),
        str(value.get("user", "")),
        str(value.get("event_type", "")).removeprefix("AUDIT_LOG_EVENT_TYPE_").lower(),
        _type_name(str(value.get("object_type", ""))),
        str(value.get("object_id", "")),
        str(value.get("object_name", "")),
        tuple((str(each.get("name", "")), _detail(each)) for each in value.get("details", ())),
    )


def _detail(given: Mapping[str, Any]) -> Cell:
    is_secret = SECRET_OPTION.fullmatch(str(given.get("name", "")))
    return _cell(_HIDDEN if is_secret else given.get("value"))


def _cell(value: Any) -> Cell:
    return cell_of(value, 120, 4000)


def _id(given: Any) -> str:
    """An id as text: `u1`, `s1`, or `p` for everybody. Empty if there is none."""
    match given:
        case {"user": number}:
            return f"u{number}"
        case {"system": number}:
            return f"s{number}"
        case {"public": _}:
            return "p"
        case str():
            return given
        case _:
            return ""


def _type_name(name: str) -> str:
    return name.removeprefix("OBJECT_TYPE_").replace("_", " ").lower()


def _rank(kind: str) -> int:
    kinds: Sequence[str] = [OBJECT_TYPES[each].name for each in SHOWN]
    return kinds.index(kind) if kind in kinds else len(kinds)
