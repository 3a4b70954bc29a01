"""Uses what needs an extra, in a process that can import no package of an extra, and prints what is told.

`python without_extras.py FOLDER` prints JSON: for each use, the extra, the use, the message and the hint.
"""

import json
import shlex
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from typing import Any

OF_EXTRAS = (
    "aiohttp",
    "boto3",
    "botocore",
    "confluent_kafka",
    "deltalake",
    "duckdb",
    "fsspec",
    "fastavro",
    "jinja2",
    "markupsafe",
    "pandas",
    "psycopg",
    "psycopg_pool",
    "pyiceberg",
    "pyspark",
    "yaml",
)


class Blocked(MetaPathFinder):
    def find_spec(self, fullname: str, *_: Any) -> None:
        if fullname.partition(".")[0] in OF_EXTRAS:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def main(place: str) -> None:
    """Print what is told. The imports are here because none may come before `Blocked`."""
    from click.testing import CliRunner

    import holdfast
    import holdfast.spark
    from holdfast.cli import main as program
    from holdfast.stash.url import open_stash

    shop = f"{place}/shop"
    orders = holdfast.table(shop, "orders", columns={"id": "int64"}, key=["id"])
    orders.append([{"id": 1}])
    assert orders.read().to_pylist() == [{"id": 1}]

    kafka = {"kafka": {"bootstrapServers": "localhost:9092", "topic": "orders"}, "format": {"json": {}}}
    postgres = {"postgres": {"url": "postgresql://u@host/db", "table": "public.t", "publication": "p"}}
    bucket = {"files": {"path": "s3://bucket/inbox", "pattern": "*.jsonl"}, "format": {"json": {}}}
    avro = {"files": {"path": place, "pattern": "*.avro"}, "format": {"avro": {}}}

    def ingest(source: dict[str, Any], name: str) -> None:
        holdfast.table(shop, name, columns={"id": "int64"}, key=["id"]).close()
        holdfast.ingest_source(shop, name, source, once=True)

    log = "postgresql://u:secret@host/db"
    calls: list[tuple[str, str, Callable[[], object]]] = [
        ("pandas", "to_pandas", orders.to_pandas),
        ("sql", "sql", lambda: holdfast.sql(shop, "select 1")),
        ("sql", "to_duckdb", orders.to_duckdb),
        ("s3", "table", lambda: holdfast.table("s3://bucket/shop", "orders")),
        ("s3", "export", lambda: orders.export("s3://bucket/orders")),
        ("s3", "source", lambda: ingest(bucket, "bucket")),
        ("postgres", "table", lambda: holdfast.table(f"{place}/two", "orders", consensus=log)),
        ("postgres", "stash", lambda: open_stash(log)),
        ("postgres", "source", lambda: ingest(postgres, "postgres")),
        ("iceberg", "export", lambda: orders.export("lake.shop.orders", format="iceberg")),
        ("delta", "export", lambda: orders.export(f"{place}/delta", format="delta")),
        ("spark", "configure", lambda: holdfast.spark.configure(None)),
        ("spark", "register", lambda: holdfast.spark.register(None)),
        ("ingest", "Kafka", lambda: ingest(kafka, "kafka")),
        ("ingest", "Avro", lambda: ingest(avro, "avro")),
    ]
    commands = [
        ("sql", "sql 'select 1'"),
        ("s3", "ls --url s3://bucket/shop"),
        ("s3", "collection export orders s3://bucket/orders"),
        ("postgres", f"ls --url {place}/two --consensus {log}"),
        ("postgres", f"catalog epoch --stash {log}"),
        ("iceberg", "collection export orders lake.shop.orders --format iceberg"),
        ("delta", f"collection export orders {place}/delta --format delta"),
        ("ingest", f"ingest {place}/orders.yaml --once"),
        ("console", "console --no-browser"),
    ]
    told = []
    for extra, what, call in calls:
        try:
            call()
            told.append([extra, what, "nothing", ""])
        except holdfast.BadInput as error:
            told.append([extra, what, str(error), error.hint])
    for extra, line in commands:
        done = CliRunner(env={"HOLDFAST_URL": shop}).invoke(program, shlex.split(line))
        said = done.output.splitlines()
        told.append([extra, line, *(said if len(said) == 2 else [done.output + repr(done.exception), ""])])
    print(json.dumps(told))


sys.meta_path.insert(0, Blocked())
main(sys.argv[1])
