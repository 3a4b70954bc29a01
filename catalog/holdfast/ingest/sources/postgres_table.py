"""What the catalog of Postgres says of a table, and whether it can feed a collection.

The changes of a table only lead to its contents if nothing else changes it. So a collection remembers what it
relies on (`FittingTable.facts`). If one of these facts is another one later, the rows may have changed
without a message: a type was altered, a column was dropped and added again, the publication left the table
out.

Some changes don't leave another definition behind, but traces: the files of the table, and which
transactions wrote rows of Postgres' catalog. Harmless changes such as `VACUUM FULL` or `SET STATISTICS` leave
traces too. So one trace alone may count for nothing, and each binding remembers the traces of its own time.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

import pyarrow as pa
import xxhash

from holdfast.persist.rows.schema import type_name

QUERY: Final[LiteralString] = """
SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint AS seen, c.oid::bigint AS table,
  c.relkind::text AS kind, c.relreplident::text AS identity, c.relpersistence::text AS persistence,
  jsonb_build_array(c.relfilenode::bigint, c.reltoastrelid::bigint) AS file,
  (SELECT jsonb_object_agg(a.attname, jsonb_build_object(
      'facts', jsonb_build_array(a.attnum, a.atttypid::bigint, a.atttypmod), 'written', a.xmin::text,
      'type', CASE WHEN b.oid IS NULL THEN t.typname ELSE b.typname END,
      'shown', format_type(a.atttypid, a.atttypmod),
      'required', a.attnotnull, 'generated', a.attgenerated <> ''))
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
  (SELECT jsonb_agg(jsonb_build_object('index', i.indexrelid::bigint, 'primary', i.indisprimary,
      'identity', i.indisreplident, 'columns', (SELECT jsonb_agg(a.attname)
        FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])))
      ORDER BY i.indexrelid)
    FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indexprs IS NULL) AS indexes,
  (SELECT to_jsonb(f) FROM pg_publication_tables f
    WHERE f.pubname = %(publication)s AND f.schemaname = n.nspname AND f.tablename = c.relname) AS published,
  (SELECT jsonb_build_array(p.oid::bigint, p.xmin::text, r.oid::bigint, s.oid::bigint)
    FROM pg_publication p LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
      LEFT JOIN pg_publication_namespace s ON s.pnpubid = p.oid AND s.pnnspid = n.oid
    WHERE p.pubname = %(publication)s) AS publication,
  (SELECT jsonb_build_object('all', p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate,
      'via_root', p.pubviaroot)
    FROM pg_publication p WHERE p.pubname = %(publication)s) AS publishes,
  (SELECT t.xmin::text FROM pg_type t WHERE t.oid = c.reltype) AS row_type,
  (WITH RECURSIVE used(id) AS (
      SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = ANY (%(columns)s)
      UNION SELECT part.id FROM used JOIN pg_type t ON t.oid = used.id CROSS JOIN LATERAL (
        SELECT t.typelem UNION SELECT t.typbasetype
        UNION SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
        UNION SELECT a.atttypid FROM pg_attribute a
          WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) AS part(id))
    SELECT jsonb_build_object(
      'labels', (SELECT jsonb_agg(jsonb_build_array(e.oid::bigint, e.xmin::text) ORDER BY e.oid)
        FROM pg_enum e WHERE e.enumtypid IN (SELECT id FROM used)),
      'attributes', (SELECT jsonb_agg(
          jsonb_build_array(a.attrelid::bigint, a.attnum, a.atttypid::bigint) ORDER BY a.attrelid, a.attnum)
        FROM pg_attribute a JOIN pg_type t ON t.typrelid = a.attrelid
        WHERE a.attnum > 0 AND t.oid IN (SELECT id FROM used)))) AS types
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(name)s
"""
"""All facts of a table, in one row. None if there is no such table."""

NEW_EPOCH: Final = (
    "set onReset: NewEpoch to read the whole table again, which replaces the contents at one time and passes"
    " over what was in between"
)
_WRITES_ANEW: Final = "TRUNCATE, VACUUM FULL, CLUSTER or ALTER TABLE"
_INTEGERS: Final = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
_FITTING: Final[Mapping[str, frozenset[str]]] = {
    "bool": frozenset({"bool"}),
    "int2": _INTEGERS | {"float32", "float64", "decimal128"},
    "int4": _INTEGERS | {"float64", "decimal128"},
    "int8": _INTEGERS | {"decimal128"},
    "oid": _INTEGERS,
    "float4": frozenset({"float32", "float64"}),
    "float8": frozenset({"float64"}),
    "numeric": frozenset({"decimal128"}),
    "date": frozenset({"date32"}),
    "timestamp": frozenset({"timestamp"}),
    "timestamptz": frozenset({"timestamp_utc"}),
    "bytea": frozenset({"binary"}),
}
"""By type of Postgres: which types of a collection have all its values. `string` has those of every type."""


_NAMES: Final = re.compile(
    r"_?(reg(class|collation|config|dictionary|namespace|oper|operator|proc|procedure|role|type)|aclitem)"
)
"""Types whose values are shown as the name of something else, which may be renamed."""


class Unfit(Exception):
    """Why a table can't feed the collection, and what to do."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason, self.hint = reason, hint


@dataclass(frozen=True, slots=True)
class FittingTable:
    """A table that can feed the collection.

    `facts` is what must stay as it is, with the `traces` of changes. `labels` are those of the enums that the
    columns use, in the order in which they were made. `places` says how many published columns come before
    each column. `seen` is the end of the log then.
    """

    facts: Mapping[str, Any]
    labels: Sequence[Any]
    places: Mapping[str, int]
    seen: int = field(compare=False)
    is_published_by_root: bool

    def facts_after(self, old: Mapping[str, Any], position: int) -> Mapping[str, Any]:
        """The facts for the binding that follows one with these facts, up to `position`.

        It may end before the log has what changed by now. So it keeps the places of all columns since
        `position`, each with the end of the log when they were seen.
        """
        if "places" not in old.get("traces", {}):
            return self.facts
        places = old["traces"]["places"]
        while len(places) > 1 and places[1][0] <= position:
            places = places[1:]
        if places[-1][1] != self.places:
            places = [*places, [self.seen, self.places]]
        return {**self.facts, "traces": {**self.facts["traces"], "places": places}}

    def advice_on(self, changed: str) -> str:
        """What else to do about a difference, so that it doesn't come again."""
        if _WRITES_ANEW not in changed:
            return ""
        return (
            "; before that, drop the publication and make it again FOR TABLE with this table, so that such a"
            " statement stalls nothing"
        )

    def difference(self, old: Mapping[str, Any]) -> str:
        """What was changed since these facts so that rows may have changed without a message, or ""."""
        new = self.facts
        if old["table"] != new["table"]:
            return "the table was dropped and created again"
        if old["publication"] != new["publication"]:
            return "the publication was changed, or has left the table out for a while"
        for name in {**old["columns"], **new["columns"]}:
            was, is_ = old["columns"].get(name), new["columns"].get(name)
            if was is None:
                return f"the collection has got column '{name}'"
            if is_ is None:
                return f"the collection has lost column '{name}'"
            if was != is_:
                how = "dropped and added again" if was[0] != is_[0] else "changed to another type"
                return f"column '{name}' was {how}"
        if old["unique"] != new["unique"]:
            return "the replica identity or its unique index was changed"
        # Bindings of earlier builds have no traces.
        return self._traced(old["traces"]) if "traces" in old else ""

    def _traced(self, old: Mapping[str, Any]) -> str:
        new = self.facts["traces"]
        _, _, by_name, by_schema = self.facts["publication"]
        altered = [name for name, was in old["columns"].items() if new["columns"][name] != was]
        (was_file, was_toast), (file, toast) = old["file"], new["file"]
        # Each rewrite makes another TOAST table. TRUNCATE keeps it.
        is_rewritten = was_file != file and (was_toast != toast or not toast)
        if is_rewritten and altered:
            return f"column '{altered[0]}' was altered, and the rows were written anew (ALTER ... TYPE)"
        if is_rewritten and by_name is None:
            return (
                f"the rows were written anew (by {_WRITES_ANEW}), and the table may have been unlogged for a"
                " while, because the publication does not name it"
            )
        if self.is_published_by_root and len(altered) == len(old["columns"]):
            return "the table may have been a partition for a while, published as the table above it"
        if by_name is None and by_schema is not None and old["row_type"] != new["row_type"]:
            return "the table may have been in another schema for a while"
        if old["labels"] != _numbered(self.labels[: old["labels"][0]]):
            return "a value of an enum was renamed"
        if old["attributes"] != new["attributes"]:
            return "a composite type that a column uses was changed"
        return ""


def _numbered(labels: Sequence[Any]) -> list[int | str]:
    """How many labels there are, and a digest of them. More labels may follow, which no row has yet."""
    return [len(labels), _digest(labels)]


def _digest(found: Any) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(found).encode())


def checked(
    row: Mapping[str, Any] | None, columns: pa.Schema, keys: Sequence[str], publication: str
) -> FittingTable:
    """Return the table that a row of `QUERY` describes. Raises `Unfit` if it can't feed these columns."""
    if row is None:
        raise Unfit("doesn't exist", "create the table, or correct source.postgres.table")
    identity, found, published = row["identity"], row["columns"], row["published"]
    if row["kind"] != "r" or row["persistence"] != "p":
        raise Unfit("is not an ordinary table", "name a table that is not partitioned, temporary or unlogged")
    if row["publication"] is None:
        raise Unfit(
            f"is not published: there is no publication {publication}",
            f"CREATE PUBLICATION {publication} FOR TABLE ..., or correct source.postgres.publication",
        )
    if published is None:
        raise Unfit(f"is not in publication {publication}", f"ALTER PUBLICATION {publication} ADD TABLE ...")
    if not row["publishes"]["all"]:
        raise Unfit(
            f"has changes that publication {publication} leaves out",
            f"ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')",
        )
    if published.get("rowfilter") is not None:
        raise Unfit(f"has rows that publication {publication} leaves out", "publish it without WHERE")
    for each in columns:
        _check_column(each, (found or {}).get(each.name), published.get("attnames"), publication)
    for each in keys:
        if not found[each]["required"]:
            raise Unfit(
                f"allows null in column '{each}' of the collection's key",
                "ALTER TABLE ... ALTER COLUMN ... SET NOT NULL",
            )
    unique = _check_key(identity, keys, row["indexes"] or ())
    places = {each.name: published["attnames"].index(each.name) for each in columns}
    labels, attributes = (row["types"][each] or () for each in ("labels", "attributes"))
    facts = {
        "table": row["table"],
        "publication": row["publication"],
        "columns": {each.name: found[each.name]["facts"] for each in columns},
        # With the whole row as identity, nothing else shows that the keys were not unique for a while.
        "unique": unique if identity == "f" else 0,
        "traces": {
            "file": row["file"],
            "columns": {each.name: found[each.name]["written"] for each in columns},
            "row_type": row["row_type"],
            "labels": _numbered(labels),
            "attributes": _digest(attributes),
            "places": [[0, places]],
        },
    }
    return FittingTable(facts, labels, places, row["seen"], row["publishes"]["via_root"])


def _check_column(
    column: pa.Field, found: Mapping[str, Any] | None, published: Sequence[str] | None, publication: str
) -> None:
    if found is None:
        raise Unfit(
            f"has no column '{column.name}', which the collection has",
            "leave it out of a new spec; if it was dropped, add it to the table again and set onReset:"
            " NewEpoch, or feed another collection",
        )
    if found["generated"] or (published is not None and column.name not in published):
        raise Unfit(
            f"has a column '{column.name}' that publication {publication} leaves out",
            "publish all columns that the collection has; generated ones are not published",
        )
    if _NAMES.fullmatch(found["type"]):
        raise Unfit(
            f"has a column '{column.name}' of type {found['shown']}, whose values change without a message"
            " when something is renamed",
            "leave it out of the spec",
        )
    wanted = type_name(column.type)
    fits = _FITTING.get(found["type"], frozenset()) | {"string"}
    if wanted.partition("(")[0] not in fits:
        raise Unfit(
            f"has a column '{column.name}' of type {found['shown']}, which type {wanted} of the collection"
            " does not fit",
            f"declare it as {' or '.join(sorted(fits))}",
        )


def _check_key(identity: str, keys: Sequence[str], indexes: Sequence[Mapping[str, Any]]) -> int:
    """The unique index that makes the key one. Raises `Unfit` if there is none, or changes lack the key."""
    key = ", ".join(keys)
    unique = [each for each in indexes if set(each["columns"]) <= set(keys)]
    if not unique:
        raise Unfit(
            f"has no primary key and no unique index on the collection's key ({key})",
            "declare the columns of the table's primary key as the key of the collection",
        )
    sent = {"d": "primary", "i": "identity"}.get(identity)
    names = {name for each in indexes if sent and each[sent] for name in each["columns"]}
    if identity != "f" and not set(keys) <= names:
        raise Unfit(
            f"does not send the collection's key ({key}) with an update or delete: its replica identity"
            f" {'is nothing' if identity == 'n' else 'has ' + (', '.join(sorted(names)) or 'no columns')}",
            "ALTER TABLE ... REPLICA IDENTITY DEFAULT, USING INDEX or FULL",
        )
    return int(unique[0]["index"])
