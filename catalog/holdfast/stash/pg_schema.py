"""The schema of a stash in Postgres: its tables, how it is created, and the check that a schema is a stash.

One transaction creates everything, under an advisory lock on the schema's name. So the schema is complete or
absent, even if several processes create it at once.
"""

import zlib
from typing import Final

from psycopg import sql

from holdfast.errors import BadInput, NoLocation
from holdfast.pg_session import Connection, PostgresAddress
from holdfast.stash.stash import check_layout

LAYOUT_VERSION: Final = 1
"""The version of the tables in a schema."""
_LOCK_CLASS: Final = 0x48465354  # "HFST": the class of the advisory lock

CREATE: Final = (
    "CREATE TABLE {schema}.collections (id integer PRIMARY KEY, name text NOT NULL)",
    """CREATE TABLE {schema}.data (collection_id integer NOT NULL, key bytea NOT NULL, value bytea NOT NULL,
      time bigint NOT NULL, diff bigint NOT NULL)""",
    "CREATE INDEX data_by_time ON {schema}.data (time)",
    # The index has only the beginning of a long key, because an entry can take at most a third of a page.
    "CREATE INDEX data_by_key ON {schema}.data (collection_id, substring(key, 1, 1024))",
    "CREATE INDEX data_retractions ON {schema}.data (time) WHERE diff < 0",
    "CREATE TABLE {schema}.sinces (since bigint NOT NULL)",
    "INSERT INTO {schema}.sinces VALUES (0)",
    "CREATE TABLE {schema}.uppers (upper bigint NOT NULL)",
    "INSERT INTO {schema}.uppers VALUES (0)",
    "CREATE TABLE {schema}.holds (name text PRIMARY KEY, time bigint NOT NULL)",
    "CREATE TABLE {schema}.stash (layout integer NOT NULL)",
)
TABLES: Final = frozenset({"stash", "collections", "data", "sinces", "uppers", "holds"})


def prepare(connection: Connection, address: PostgresAddress, *, create: bool) -> None:
    """Check the layout. If there are no tables and `create` is set, create the schema and its tables."""
    layout = _layout(connection, address)
    if layout is None and create:
        with connection.transaction():
            name = zlib.crc32(address.schema.encode()) - (1 << 31)
            connection.execute("SELECT pg_advisory_xact_lock(%s::int, %s::int)", (_LOCK_CLASS, name))
            if _layout(connection, address) is None:  # otherwise another process was faster
                _create(connection, address)
        layout = LAYOUT_VERSION
    if layout is None:
        raise NoLocation(
            f"there is no stash in {address.description}",
            hint="check the URL; it is made by the first process that opens it for writing",
        )
    check_layout(layout, LAYOUT_VERSION, f"the stash in {address.description}")


def _create(connection: Connection, address: PostgresAddress) -> None:
    schema = sql.Identifier(address.schema)
    if not connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", (address.schema,)).fetchall():
        connection.execute(sql.SQL("CREATE SCHEMA {schema}").format(schema=schema))
    for statement in CREATE:
        connection.execute(sql.SQL(statement).format(schema=schema))
    insert = sql.SQL("INSERT INTO {schema}.stash VALUES (%s)").format(schema=schema)
    connection.execute(insert, (LAYOUT_VERSION,))


def _layout(connection: Connection, address: PostgresAddress) -> int | None:
    """The version of the tables. None if there are none. Raises `BadInput` if they are not a stash's."""
    listing = "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY tablename"
    found = [str(name) for (name,) in connection.execute(listing, (address.schema,))]
    if not found:
        return None
    # The information schema hides tables that the role has no rights on.
    column = """SELECT FROM pg_attribute JOIN pg_class ON attrelid = pg_class.oid
      JOIN pg_namespace ON relnamespace = pg_namespace.oid
      WHERE nspname = %s AND relname = 'stash' AND attname = 'layout'"""
    if connection.execute(column, (address.schema,)).fetchall():
        select = sql.SQL("SELECT layout FROM {schema}.stash").format(schema=sql.Identifier(address.schema))
        rows = connection.execute(select).fetchall()
        if len(rows) == 1 and (int(rows[0][0]) != LAYOUT_VERSION or set(found) >= TABLES):
            return int(rows[0][0])
    raise BadInput(
        f"{address.description} is not a stash: it has other tables, such as {found[0]}",
        hint="choose another schema with ?schema=name",
    )
