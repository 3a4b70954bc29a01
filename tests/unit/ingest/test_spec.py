"""A spec names what is wrong with it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.errors import BadInput
from holdfast.ingest import IngestSpec, parse
from holdfast.ingest.credentials import SecretPlace, SecretRef
from holdfast.ingest.envelope import Envelope
from holdfast.ingest.opened import format_of, left_in_source
from holdfast.ingest.spec import CollectionSourceSpec, FilesSpec, KafkaSpec, PostgresSpec
from holdfast.persist import Schema

WHOLE: dict[str, Any] = {
    "files": {"path": "/in", "pattern": "*.json", "onChanged": "ignore"},
    "format": {"json": {}},
    "envelope": "Upsert",
    "include": {"position": "at"},
    "run": {"interval": "500ms", "progressInterval": "2m"},
    "batch": {"maxRows": 10, "maxBytes": "1Ki"},
    "onError": {"collect": {"limit": 3}},
}


def test_a_whole_spec() -> None:
    source = FilesSpec(Path("/in"), "*.json", "ignore")
    wanted = IngestSpec(source, "json", Envelope.UPSERT, {"position": "at"}, 0.5, 120, 10, 1024, 3)
    assert parse(WHOLE) == wanted


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"generator": {"rows": 1}}, "must have one of files, kafka, postgres, collection, generator"),
        ({"kafka": {}}, "must have one of files, kafka, postgres, collection, generator"),
        ({"mysql": {}}, "unknown field 'mysql'"),
        ({"files": {}}, "source.files.path is missing"),
        ({"files": {"path": ""}}, "source.files.path must be text, not ''"),
        ({"files": {"paht": "/in"}}, "source.files.path is missing"),
        ({"files": {"path": "/in", "glob": "*"}}, "source.files has an unknown field 'glob'"),
        ({"files": []}, r"source.files must be a block of fields, not \[\]"),
        ({"format": {}}, "source.format must be one of json, csv"),
        ({"format": {"xml": {}}}, "source.format must be one of json, csv"),
        ({"format": {"json": {"x": 1}}}, "source.format.json has an unknown field 'x'"),
        ({"envelope": "upsert"}, "source.envelope is 'upsert', expected one of None, Upsert"),
        ({"include": {"offset": "a"}}, "source.include has an unknown field 'offset'"),
        ({"run": {"interval": 5}}, "source.run.interval is 5, expected a duration such as 5s"),
        ({"batch": {"maxRows": 0}}, "source.batch.maxRows is 0, expected a number from 1"),
        ({"batch": {"maxRows": True}}, "source.batch.maxRows is True"),
        ({"batch": {"maxBytes": "1KB"}}, "source.batch.maxBytes is '1KB', expected a size such as 256Mi"),
        ({"onError": {"collect": {"limit": -1}}}, "source.onError.collect.limit is -1"),
    ],
)
def test_a_bad_field_is_named(changed: dict[str, Any], told: str) -> None:
    block = {name: value for name, value in {**WHOLE, **changed}.items() if value is not None}
    with pytest.raises(BadInput, match=told):
        parse(block)


def test_the_hint_for_a_missing_field_names_a_misspelled_one() -> None:
    with pytest.raises(BadInput, match=r"source\.files\.path is missing") as caught:
        parse({**WHOLE, "files": {"paht": "/in", "pattern": "*"}})
    assert caught.value.hint == "'paht' may be meant"


def test_the_hint_for_an_unknown_field_names_all_that_there_may_be() -> None:
    with pytest.raises(BadInput, match=r"source\.kafka has an unknown field 'secret'") as caught:
        parse({"kafka": {"bootstrapServers": "b:9092", "topic": "t", "secret": "x"}, "format": {"json": {}}})
    assert caught.value.hint is not None
    assert "onReset, secretRef, security, start" in caught.value.hint


def test_a_topic() -> None:
    kafka = {
        "bootstrapServers": "b:9092",
        "topic": "orders",
        "start": {"timestamp": "2026-01-31T00:00:00Z"},
        "onReset": "NewEpoch",
        "group": "shop",
        "security": {"sasl.username": "me", "passwordEnv": "SECRET", "keyPasswordFile": "/key"},
    }
    secrets = {"sasl.password": SecretPlace("SECRET"), "ssl.key.password": SecretPlace(file=Path("/key"))}
    wanted = KafkaSpec("b:9092", "orders", 1769817600000, True, "shop", {"sasl.username": "me"}, secrets)
    assert parse({"kafka": kafka, "format": {"json": {}}}).source == wanted
    start = yaml.safe_load("{timestamp: 2026-01-31T00:00:00Z}")
    assert parse({"kafka": {**kafka, "start": start}, "format": {"json": {}}}).source == wanted


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"bootstrapServers": None}, "source.kafka.bootstrapServers is missing"),
        ({"topic": 1}, "source.kafka.topic must be text, not 1"),
        ({"start": "Now"}, "'Now', expected one of Earliest, Latest, {timestamp: ...}, {offsets: ...}"),
        ({"start": {"time": 1}}, "source.kafka.start must be Earliest, Latest, {timestamp: "),
        ({"start": {"timestamp": "noon"}}, "source.kafka.start.timestamp is 'noon', expected a time such as"),
        ({"start": {"timestamp": "2026-01-31T00:00"}}, "source.kafka.start.timestamp is '2026-01-31T00:00'"),
        ({"start": {"offsets": {"a": 1}}}, "source.kafka.start.offsets has 'a' in the place of the number"),
        ({"start": {"offsets": {0: -1}}}, "source.kafka.start.offsets.0 is -1, expected a number from 0"),
        ({"onReset": "Skip"}, "source.kafka.onReset is 'Skip', expected one of Stall, NewEpoch"),
        ({"security": {"sasl.password": "p"}}, "source.kafka.security.sasl.password is a secret"),
        ({"security": {"debug": "all"}}, "source.kafka.security has an unknown field 'debug'"),
        (
            {"security": {"passwordEnv": "A", "passwordFile": "B"}},
            "source.kafka.security must have one of passwordEnv and passwordFile, not both",
        ),
    ],
)
def test_a_bad_field_of_a_topic_is_named(changed: dict[str, Any], told: str) -> None:
    kafka = {"bootstrapServers": "b:9092", "topic": "orders", **changed}
    with pytest.raises(BadInput, match=re.escape(told)):
        parse({"kafka": kafka, "format": {"json": {}}})


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"envelope": "Upsert"}, "source.kafka.transactions needs envelope Debezium"),
        (
            {"format": {"avro": {"schemaFile": "/s"}}, "envelope": "Debezium"},
            "source.kafka.transactions needs source.format.avro.registry",
        ),
        (
            {"kafka": {"bootstrapServers": "b:1", "topic": "t"}, "batch": {"maxTransactionBytes": "1Gi"}},
            "source.batch.maxTransactionBytes needs source.kafka.transactions",
        ),
    ],
)
def test_what_transactions_need(changed: dict[str, Any], told: str) -> None:
    kafka = {"bootstrapServers": "b:1", "topic": "t", "transactions": "shop.transaction"}
    block = {"kafka": kafka, "format": {"json": {}}, **changed}
    with pytest.raises(BadInput, match=re.escape(told)):
        parse(block)
    good = parse({**block, "kafka": kafka, "format": {"json": {}}, "envelope": "Debezium"})
    assert good.has_transactions


TOPIC: dict[str, Any] = {"bootstrapServers": "b:1", "topic": "t"}
SCRAM = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
TABLE: dict[str, Any] = {"url": "postgresql://db/shop", "table": "public.orders", "publication": "shop"}
NAMED = {"secretRef": {"name": "keys"}}


def with_registry(**registry: Any) -> dict[str, Any]:
    return {"kafka": TOPIC, "format": {"avro": {"registry": {"url": "http://r", **registry}}}}


@pytest.mark.parametrize(
    ("block", "where", "required"),
    [
        ({"kafka": {**TOPIC, **NAMED, "security": SCRAM}}, "kafka", ("username", "password")),
        ({"kafka": {**TOPIC, **NAMED, "security": SCRAM | {"sasl.username": "me"}}}, "kafka", ("password",)),
        ({"kafka": {**TOPIC, **NAMED, "security": {"security.protocol": "SSL"}}}, "kafka", ()),
        ({"postgres": {**TABLE, **NAMED}}, "postgres", ("password",)),
        (
            {"files": {"path": "s3://shop/in", **NAMED}},
            "files",
            ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        ),
        (with_registry(**NAMED), "format.avro.registry", ("username", "password")),
        (with_registry(**NAMED, user="me"), "format.avro.registry", ("password",)),
    ],
)
def test_a_secret_is_named_and_says_which_keys_it_needs(
    block: dict[str, Any], where: str, required: tuple[str, ...]
) -> None:
    form = {} if "postgres" in block or "format" in block else {"format": {"json": {}}}
    (secret,) = parse({**block, **form}).secrets
    assert (secret.name, secret.where, secret.required) == ("keys", f"source.{where}.secretRef", required)
    assert set(required) <= set(secret.keys)
    # Only Kafka and files are read by many processes.
    assert secret.shared == (where in {"kafka", "files"})


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"kafka": {**TOPIC, **NAMED}}, "source.kafka.secretRef needs source.kafka.security.security.proto"),
        (
            {"kafka": {**TOPIC, **NAMED, "security": {**SCRAM, "passwordEnv": "A"}}},
            "source.kafka.secretRef has the secrets, so source.kafka.security can't name a variable",
        ),
        ({"kafka": {**TOPIC, "secretRef": {}}}, "source.kafka.secretRef.name is missing"),
        ({"kafka": {**TOPIC, "secretRef": {"name": "../x"}}}, "source.kafka.secretRef.name is '../x'"),
        (
            {"kafka": {**TOPIC, "secretRef": {"name": "a", "namespace": "b"}}},
            "source.kafka.secretRef has an unknown field 'namespace'",
        ),
        ({"files": {"path": "/in", **NAMED}}, "source.files.secretRef is for a path s3://..."),
        ({"postgres": {**TABLE, **NAMED, "passwordFile": "/p"}}, "source.postgres.secretRef has the secrets"),
        (with_registry(**NAMED, passwordEnv="A", user="me"), "registry.secretRef has the secrets"),
    ],
)
def test_a_secret_that_makes_no_sense_is_refused(block: dict[str, Any], told: str) -> None:
    form = {} if "postgres" in block or "format" in block else {"format": {"json": {}}}
    with pytest.raises(BadInput, match=re.escape(told)):
        parse({**block, **form})


def test_the_keys_of_a_secret_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = SecretRef("keys", "source.kafka.secretRef", ("username", "password", "ca.crt"), ("password",))
    monkeypatch.delenv("HOLDFAST_SECRETS", raising=False)
    with pytest.raises(
        BadInput, match="names Secret keys, and the environment variable HOLDFAST_SECRETS"
    ) as e:
        secret.read()
    assert e.value.hint == (
        "put password into files in a folder keys, and set HOLDFAST_SECRETS to the folder that has it"
    )
    monkeypatch.setenv("HOLDFAST_SECRETS", str(tmp_path))
    with pytest.raises(BadInput, match=r"has no key password, which source\.kafka\.secretRef needs"):
        secret.read()
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/password").write_text("hunter2\n")
    (tmp_path / "keys/other").write_text("x")
    assert secret.read() == {"password": "hunter2"}
    # It is read anew each time, and no message has it.
    (tmp_path / "keys/password").write_bytes(b"\xffhunter3")
    with pytest.raises(BadInput, match="with password of Secret keys: it is not UTF-8") as e:
        secret.read()
    assert "hunter" not in str(e.value)


def test_a_secret_without_any_key_that_counts_is_refused() -> None:
    secret = SecretRef("keys", "source.kafka.secretRef", ("ca.crt", "tls.crt"))
    assert secret.fault({"tls.crt": "x"}) == ""
    assert "has none of the keys that source.kafka.secretRef can use" in secret.fault({"password": "x"})


def test_a_table_of_postgres() -> None:
    postgres = {
        "url": "postgresql://me@db:5432/shop",
        "table": "public.orders",
        "publication": "shop",
        "slot": "mine",
        "onReset": "NewEpoch",
        "passwordEnv": "SECRET",
    }
    spec = parse({"postgres": postgres})
    secret = SecretPlace("SECRET")
    wanted = PostgresSpec("postgresql://me@db:5432/shop", "public.orders", "shop", "mine", True, secret)
    assert (spec.source, spec.format, spec.envelope) == (wanted, "json", Envelope.UPSERT)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"url": None}, "source.postgres.url is missing"),
        ({"url": "mysql://db/shop"}, "source.postgres.url must be postgresql://user@host:port/database"),
        ({"url": "postgresql://me:p@db/shop"}, "source.postgres.url has a password, which is a secret"),
        ({"url": "postgresql://db/shop?password=p"}, "source.postgres.url has a password, which is a secret"),
        ({"url": "postgresql://db/shop?p%61ssword=p"}, "source.postgres.url has a password"),
        ({"url": "postgresql://db/shop?sslpassword=p"}, "source.postgres.url has sslpassword, which is a"),
        ({"url": "postgresql://db/shop?scram_client_key=p"}, "source.postgres.url has scram_client_key"),
        ({"url": "postgresql://db/shop?oauth_client_secret=p"}, "has oauth_client_secret, which is a secret"),
        ({"url": "postgresql://[me:p@db/shop"}, "source.postgres.url can't be parsed"),
        ({"table": "orders"}, "source.postgres.table is 'orders', expected a schema and a table"),
        ({"publication": None}, "source.postgres.publication is missing"),
        ({"slot": "Orders"}, "source.postgres.slot is 'Orders', expected at most 45 lower-case letters"),
        ({"onReset": "Skip"}, "source.postgres.onReset is 'Skip', expected one of Stall, NewEpoch"),
        (
            {"passwordEnv": "A", "passwordFile": "B"},
            "must have one of passwordEnv and passwordFile, not both",
        ),
        ({"start": "Latest"}, "source.postgres has an unknown field 'start'"),
    ],
)
def test_a_bad_field_of_a_table_is_named(changed: dict[str, Any], told: str) -> None:
    postgres = {"url": "postgresql://db/shop", "table": "public.orders", "publication": "shop", **changed}
    with pytest.raises(BadInput, match=re.escape(told)):
        parse({"postgres": postgres})


def test_a_url_in_the_wrong_place_is_not_shown() -> None:
    for block in ["postgresql://me:p@db/shop", {"url": ["postgresql://me:p@db/shop"]}]:
        with pytest.raises(BadInput) as caught:
            parse({"postgres": block})
        assert "me:p" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"format": {"json": {}}}, "source.format is not for postgres"),
        ({"envelope": "None"}, "source.envelope is 'None', but changes of a table need Upsert"),
        ({"include": {"timestamp": "at"}}, "source.include.timestamp is not for postgres"),
    ],
)
def test_what_does_not_fit_a_table_is_named(changed: dict[str, Any], told: str) -> None:
    postgres = {"url": "postgresql://db/shop", "table": "public.orders", "publication": "shop"}
    with pytest.raises(BadInput, match=re.escape(told)):
        parse({"postgres": postgres, **changed})


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, "source.include.position needs a column 'at' of type int64, found type string"),
        ({"include": {"position": "none"}}, "needs a column 'none' of type int64, found no such column"),
        ({"include": {}, "format": {"raw": {}}}, "format raw needs exactly one column"),
        (
            {"include": {}, "files": None, "generator": {"rows": 1}, "format": {"csv": {}}},
            "source.format is csv, which is for files only",
        ),
        ({"include": {"record": "at"}, "format": {"csv": {}}}, "include.record is for format json"),
        ({"include": {"timestamp": "id"}}, "column 'id' allows no nulls, and records of this source have no"),
        (
            {"include": {"timestamp": "id"}, "files": None, "generator": {"rows": 1}},
            "column 'id' allows no nulls, and records of this source have no timestamp",
        ),
    ],
)
def test_a_spec_must_fit_the_columns(changed: dict[str, Any], told: str) -> None:
    block = {name: value for name, value in {**WHOLE, **changed}.items() if value is not None}
    with pytest.raises(BadInput, match=told):
        format_of(parse(block), Schema.of({"id": "int64"}, {"at": "string?"}))


def test_upsert_needs_a_key() -> None:
    spec = parse({**WHOLE, "include": {}})
    with pytest.raises(BadInput, match="envelope Upsert needs a collection with a key"):
        format_of(spec, Schema.of({}, {"id": "int64"}))


def test_a_collection_as_source() -> None:
    collection = {
        "name": "raw",
        "url": "s3://b/raw",
        "consensus": "postgresql://db/raw",
        "start": "Latest",
        "columns": {"value": "body", "partition": "file"},
    }
    wanted = CollectionSourceSpec(
        "raw", "s3://b/raw", "postgresql://db/raw", "Latest", {"value": "body", "partition": "file"}
    )
    assert parse({"collection": collection, "format": {"json": {}}}).source == wanted
    rows = parse({"collection": {"name": "raw"}, "format": {"rows": {}}})
    assert (rows.source, rows.format) == (CollectionSourceSpec("raw"), "rows")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"collection": {}}, "source.collection.name is missing"),
        (
            {"collection": {"name": "raw", "start": "Now"}},
            "source.collection.start is 'Now', expected one of",
        ),
        ({"collection": {"name": "raw", "columns": {"offset": "x"}}}, "has an unknown field 'offset'"),
        ({"collection": {"name": "raw", "consensus": "x:"}}, "consensus needs source.collection.url"),
        (
            {"collection": {"name": "raw", "url": "postgresql://me:secret@db/raw"}},
            "source.collection.url has a password",
        ),
        (
            {"collection": {"name": "raw", "url": "postgresql://me@db/raw?password=secret"}},
            "source.collection.url has a password",
        ),
        ({"envelope": "Upsert"}, "source.envelope is 'Upsert', but a collection as source needs None"),
        ({"format": {"rows": {}}, "include": {"key": "k"}}, "source.include is not for format rows"),
        (
            {"format": {"rows": {}}, "collection": {"name": "raw", "columns": {"key": "k"}}},
            "source.collection.columns is not for format rows",
        ),
        (
            {"collection": None, "files": {"path": "/in"}, "format": {"rows": {}}},
            "source.format rows is only for a collection",
        ),
    ],
)
def test_a_bad_field_of_a_collection_is_named(changed: dict[str, Any], told: str) -> None:
    block = {"collection": {"name": "raw"}, "format": {"json": {}}, **changed}
    with pytest.raises(BadInput, match=re.escape(told)) as raised:
        parse({name: each for name, each in block.items() if each is not None})
    assert "secret@" not in str(raised.value)


def test_what_postgres_keeps_is_named_with_its_server_and_port_and_without_the_user() -> None:
    table = {"url": "postgresql://shop@db:6543/shop", "table": "public.orders", "publication": "p"}
    left = left_in_source(parse({"postgres": table}), "c1")
    assert left.startswith("replication slots at db:6543/shop that begin with ")
