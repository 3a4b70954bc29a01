"""A table of a real Postgres server, as those who write to it see it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Self

import psycopg

from holdfast.ingest.sources.postgres import Postgres
from holdfast.ingest.spec import PostgresSpec, parse
from holdfast.ingest.waits import Waits
from holdfast.persist import Schema
from testbed.postgres import PostgresServer

DEADLINE_S: Final = 60.0
COLUMNS: Final = "id bigint PRIMARY KEY, name text"
ORDERS: Final = Schema.of(key={"id": "int64"}, value={"name": "string?"})


class PgTable:
    """A table `orders` in a database of its own, in publication `shop`."""

    def __init__(self, server: PostgresServer, database: str, columns: str = COLUMNS) -> None:
        self.server = server
        self.database = database
        self.url = server.url(database)
        self.connection = psycopg.connect(self.url, autocommit=True)
        self.run(f"CREATE TABLE orders ({columns})")
        self.run("CREATE PUBLICATION shop FOR TABLE orders")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection, and drop the slots, which would outlive a dropped database otherwise."""
        for each in self.slots():
            self.run("SELECT pg_drop_replication_slot(%s)", each)
        self.connection.close()

    def reconnect(self) -> None:
        """Connect again, after a restart."""
        self.connection.close()
        self.connection = psycopg.connect(self.url, autocommit=True)

    def run(self, *statement: Any) -> list[tuple[Any, ...]]:
        """Run a statement with its parameters. Returns its rows."""
        cursor = self.connection.execute(statement[0], statement[1:] or None)
        return cursor.fetchall() if cursor.description else []

    def insert(self, *rows: Sequence[Any]) -> None:
        """Insert rows in one transaction."""
        with self.connection.transaction():
            for each in rows:
                places = ", ".join(["%s"] * len(each))
                self.connection.execute(f"INSERT INTO orders VALUES ({places})", each)

    def rows(self, columns: str = "id, name") -> Counter[tuple[Any, ...]]:
        """What the table has."""
        return Counter(self.run(f"SELECT {columns} FROM orders"))

    def slots(self) -> list[str]:
        """The names of the slots of the database."""
        found = "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"
        return [str(each) for (each,) in self.run(f"{found} ORDER BY slot_name")]

    def confirmed(self) -> int:
        """The position up to which the one slot is confirmed."""
        ((found,),) = self.run(
            "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots"
            " WHERE database = current_database()"
        )
        return int(found)

    def block(self, **changed: Any) -> dict[str, Any]:
        """The block `postgres` of a spec. The password is in $PGPASSWORD."""
        url = self.server.url(self.database, password=False)
        return {"url": url, "table": "public.orders", "publication": "shop", "slot": "orders", **changed}

    def source(
        self, schema: Schema = ORDERS, block: Any = None, *, streams: bool = False, **changed: Any
    ) -> Postgres:
        """A new source, as that of another process. `block` has the rest of the spec."""
        spec = parse({"postgres": self.block(**changed), **(block or {})})
        assert isinstance(spec.source, PostgresSpec)
        limits = (spec.max_rows, spec.max_transaction_bytes)
        names = (schema.arrow, schema.key_names)
        return Postgres(spec.source, spec.source.slot, *names, *limits, Waits(), streams=streams)
