"""Which of a Secret's values logs, statuses and Events may show, and for how long."""

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.ingest.credentials import SecretRef
from holdfast_operator.api.names import Kind, Reason
from holdfast_operator.catalogs.claims import new_cache
from holdfast_operator.catalogs.facts import CatalogView
from holdfast_operator.catalogs.handler import CatalogHandler
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.engine import logging as logs
from holdfast_operator.engine.handler import OperatorSettings
from holdfast_operator.engine.kube import Gone, ObjectKey
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.engine.status_writer import shown
from holdfast_operator.engine.steps import Rhythm
from holdfast_operator.migrations.moves import Migrations
from holdfast_operator.places.credentials import (
    Credentials,
    SecretNotFound,
    credentials_of,
    decoded,
    forget_secrets,
    missing_secret,
    store_keys_of,
)
from holdfast_operator.places.long_calls import LongCalls
from holdfast_operator.places.pool import StorePool
from holdfast_operator.places.storage import RefusedLocation, Storage, keys_to_open
from unit.operator.engine.oneobject import KEY, OneObject, services

MINE = ObjectKey(Kind.CATALOG, "shop", "demo")
EVIL = ObjectKey(Kind.CATALOG, "evil", "demo")


def secret(version: int = 1, /, **values: str) -> dict[str, Any]:
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
    return {"metadata": {"name": "keys", "resourceVersion": str(version)}, "data": encoded}


def told(key: ObjectKey, text: str) -> str:
    """As a status or an Event of an object tells it."""
    with logs.about(key):
        return shown(text)


def test_the_newline_that_an_editor_adds_is_no_part_of_a_value() -> None:
    found = decoded(secret(PGUSER="shop\n", PGPASSWORD="with a space \r\n", empty="\n"), MINE)
    assert found == {"PGUSER": "shop", "PGPASSWORD": "with a space ", "empty": ""}
    assert told(MINE, "with a space !") == "***!"


@pytest.fixture(autouse=True)
def nothing_hidden() -> Iterator[None]:
    yield
    forget_secrets(MINE)
    forget_secrets(EVIL)


def test_passwords_are_hidden_and_common_words_are_not() -> None:
    given = {"user": "postgres", "password": "open/sesame", "AWS_SECRET_ACCESS_KEY": "abracadabra"}
    there = secret(**given)
    assert decoded(there, MINE) == given
    assert told(MINE, "can't open postgresql://host/db") == "can't open postgresql://host/db"
    text = f"open/sesame abracadabra open%2Fsesame {there['data']['password']}"
    assert told(MINE, text) == "*** *** *** ***"
    # A line that is about nothing may be about it.
    assert logs.redact(text) == "*** *** *** ***"


def test_what_another_namespace_calls_a_secret_is_none_elsewhere() -> None:
    decoded(secret(a="collection", c="Catalog", password="pass"), EVIL)
    decoded(secret(password="planted-7f3a"), MINE)
    text = "collection holdfast.public.victim of Catalog passes"
    assert told(MINE, text) == text
    assert told(MINE, "the password planted-7f3a") == "the password ***"
    assert told(EVIL, text) == "*** holdfast.public.victim of *** ***es"
    # Also of one of a name, and of the objects in between.
    assert told(ObjectKey(Kind.STORAGE_COLLECTION, "evil", "flights"), "a collection") == "a ***"


@pytest.mark.parametrize(
    ("key", "value", "hidden"),
    [
        ("a", "Ready", False),
        ("a", "Catalog", True),
        ("password", "Ready", True),
        ("PGPASSWORD", "pw12", True),
        ("AWS_SECRET_ACCESS_KEY", "abcde", True),
        ("token", "abc", False),
    ],
)
def test_a_short_value_is_hidden_only_where_its_key_tells(key: str, value: str, hidden: bool) -> None:
    decoded(secret(**{key: value}), MINE)
    assert (told(MINE, f"it is {value} now") == "it is *** now") is hidden


def test_what_was_read_for_an_object_is_forgotten_with_it_and_never_too_much() -> None:
    other = ObjectKey(Kind.CATALOG_MIGRATION, "shop", "move")
    for key in (MINE, other):
        decoded(secret(password="planted-7f3a"), key)
    forget_secrets(MINE)
    assert told(MINE, "planted-7f3a") == "***"
    forget_secrets(other)
    assert told(MINE, "planted-7f3a") == "planted-7f3a"
    assert logs.redact("planted-7f3a") == "planted-7f3a"
    for version in range(9):
        decoded(secret(version, password=f"rotated-{version}"), MINE)
    assert told(MINE, "rotated-0 rotated-1 rotated-8") == "rotated-0 *** ***"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({f"k{number}": "planted-7f3a" for number in range(65)}, "Secret 'keys' has 65 keys"),
        ({"token": "planted-7f3a" * 1366}, "key 'token' of Secret 'keys' has 16392 bytes"),
        ({"token": "planted-7f3a" * 87_000}, "key 'token' of Secret 'keys' has 1044000 bytes"),
        ({f"k{number}": "planted-7f3a" * 1365 for number in range(5)}, "of 81900 in total"),
    ],
)
def test_a_secret_that_is_larger_than_credentials_are_is_refused_whole(
    values: dict[str, str], says: str
) -> None:
    with pytest.raises(BadInput) as refused:
        decoded(secret(**values), MINE)
    message = str(refused.value)
    assert says in message
    assert "credentials can have at most 64 keys of 16384 bytes each, 65536 in total" in message
    assert "planted" not in f"{message}{refused.value.hint}"
    assert told(MINE, "planted-7f3a") == "planted-7f3a"


def test_credentials_may_be_as_large_as_a_chain_of_certificates() -> None:
    largest = {f"k{number}": chr(97 + number) * (16 << 10) for number in range(4)}
    assert decoded(secret(**largest), MINE) == largest
    many = {f"k{number}": "x" for number in range(64)}
    assert decoded(secret(2, **many), MINE) == many


def test_what_many_objects_have_of_one_secret_is_hidden_once() -> None:
    keys = [ObjectKey(Kind.CATALOG, "shop", f"demo{number}") for number in range(200)]
    for key in keys:
        decoded(secret(password="p" * (16 << 10)), key)
    assert told(MINE, "p" * (16 << 10)) == "***"
    for key in keys[1:]:
        forget_secrets(key)
    assert told(MINE, "p" * (16 << 10)) == "***"
    forget_secrets(keys[0])
    assert told(MINE, "pppp") == "pppp"


def test_a_namespace_has_a_bound_and_the_latest_of_its_secrets_are_hidden() -> None:
    keys = [ObjectKey(Kind.CATALOG, "evil", f"demo{number}") for number in range(40)]
    decoded(secret(password="planted-7f3a"), MINE)
    for number, key in enumerate(keys):
        large = {f"password{part}": f"planted-{number:02}-{part}-" + "x" * 16_000 for part in range(4)}
        decoded(secret(number, **large), key)
    first, last = (f"planted-{number:02}-0-" + "x" * 16_000 for number in (0, 39))
    assert told(EVIL, last) == "***"
    assert told(EVIL, first).startswith("planted-00-0-")
    assert told(MINE, "planted-7f3a") == "***"
    for key in keys:
        forget_secrets(key)


class WithSecret(OneObject):
    """It has every Secret, and notes which were asked for."""

    def __init__(self, storage: dict[str, Any], there: dict[str, Any]) -> None:
        super().__init__([])
        self.asked: list[str] = []
        self._there = there
        spec = {"organizationId": "0b5d5a0e-43a6-4cf1-8e5e-6f7b3f1f7a01", "storage": storage}
        self.catalog = self.body | {"spec": spec}

    async def request(self, method: str, path: str, *, query: Any = None, body: Any = None) -> Any:
        if "/secrets/" in path:
            self.asked.append(path)
            return self._there
        return await super().request(method, path, query=query, body=body)


def observed(server: WithSecret, *places: str) -> CatalogView:
    """What a look at its Catalog finds, by an operator that has these places."""
    made, metrics = services(server, []), Metrics()
    pool, long = StorePool(metrics), LongCalls(metrics, lambda _: None)
    stores = Stores(pool, long)
    settings = OperatorSettings(
        "me", None, storage_shared=False, rhythm=Rhythm(2, 60), allowed_locations=places
    )
    handler = CatalogHandler(made, stores, new_cache(None), settings, Migrations(pool, long, stores))
    return asyncio.run(handler.observe(KEY, server.catalog))


def test_a_secret_is_read_only_where_the_catalog_may_be() -> None:
    server = WithSecret({"url": "s3://b/mine", "credentialsSecretRef": {"name": "keys"}}, secret(token="x"))
    found = observed(server, "s3://elsewhere")
    assert isinstance(found.storage, RefusedLocation)
    assert server.asked == []
    assert observed(server, "s3://b").unusable_secret is None
    assert [path.rpartition("/")[2] for path in server.asked] == ["keys"]


def test_a_catalog_with_a_large_secret_says_so() -> None:
    large = secret(token="planted-7f3a" * 87_000)
    server = WithSecret({"url": "s3://b/mine", "credentialsSecretRef": {"name": "keys"}}, large)
    health = observed(server).unusable_secret
    assert health is not None
    assert health.reason is Reason.INVALID_SPEC
    assert health.message == (
        "key 'token' of Secret 'keys' has 1044000 bytes, of 1044000 in total: credentials can have at most "
        "64 keys of 16384 bytes each, 65536 in total; move other contents to another Secret"
    )


def read(spec_secret: dict[str, Any] | None, urls: dict[str, str], *, deleting: bool = False) -> Credentials:
    class Secrets:
        async def get_of(self, _type: Any, _namespace: str, name: str) -> dict[str, Any]:
            assert name == "keys"
            if spec_secret is None:
                raise Gone
            return spec_secret

    kube: Any = Secrets()
    place = Storage(**urls, secret="keys")
    return asyncio.run(credentials_of(kube, MINE, place, None, deleting=deleting))


BOTH = {"blob": "s3://b/x", "consensus": "postgresql://db/shop"}
OF_POSTGRES = {"PGUSER": "shop", "PGPASSWORD": "planted-7f3a"}
OF_S3 = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "planted-9c1d"}


def test_a_storage_gets_those_values_of_its_secret_that_are_for_its_stores() -> None:
    there = secret(**OF_POSTGRES, **OF_S3, AWS_REGION="eu", KAFKA_PASSWORD="x")
    assert read(there, BOTH).storage == {**OF_POSTGRES, **OF_S3}
    assert read(there, {"url": "s3://b/x"}).storage == OF_S3
    assert read(there, {"url": "file:///x"}).storage == {}
    assert "planted" not in repr(read(there, BOTH))
    assert keys_to_open(read(there, BOTH).storage) == {**OF_POSTGRES, **OF_S3}
    assert keys_to_open({}) is None


def keys_in(found: dict[str, Any] | None, urls: dict[str, str], name: str | None = "keys") -> tuple[str, ...]:
    class Secrets:
        async def get_of(self, _type: Any, _namespace: str, asked: str) -> dict[str, Any]:
            assert asked == "keys"
            if found is None:
                raise Gone
            return found

    kube: Any = Secrets()
    return asyncio.run(store_keys_of(kube, MINE, Storage(**urls, secret=name)))


def test_a_job_gets_those_keys_of_its_catalogs_secret_that_open_its_stores() -> None:
    there = secret(**OF_POSTGRES, **OF_S3, KAFKA_PASSWORD="x")
    assert set(keys_in(there, BOTH)) == {*OF_POSTGRES, *OF_S3}
    assert set(keys_in(there, {"url": "s3://b/x"})) == {*OF_S3}
    assert set(keys_in(secret(**OF_S3, AWS_SESSION_TOKEN="t"), BOTH)) == {*OF_S3, "AWS_SESSION_TOKEN"}
    assert keys_in(there, {"url": "file:///x"}) == ()
    assert keys_in(None, BOTH, None) == ()
    with pytest.raises(BadInput, match="Secret 'keys' has PGPASSWORD, but not PGUSER"):
        keys_in(secret(PGPASSWORD="x"), BOTH)
    with pytest.raises(SecretNotFound, match="Secret 'keys' is not in this namespace") as missing:
        keys_in(None, BOTH)
    assert missing.value.hint == "create it or correct spec.storage.credentialsSecretRef of Catalog 'demo'"


def test_the_server_of_a_catalogs_own_password_may_choose_how_it_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the operator's own password is only ever proven."""
    monkeypatch.setenv("PGREQUIREAUTH", "scram-sha-256,none")
    methods = {"PGREQUIREAUTH": "password,md5,scram-sha-256,none"}
    assert keys_to_open(OF_POSTGRES) == OF_POSTGRES | methods
    assert keys_to_open(OF_S3) == OF_S3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"PGPASSWORD": "planted-7f3a"}, "Secret 'keys' has PGPASSWORD, but not PGUSER"),
        ({"PGUSER": "shop", **OF_S3}, "Secret 'keys' has PGUSER, but not PGPASSWORD"),
        ({"AWS_SESSION_TOKEN": "x"}, "not AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_half_of_a_pair_is_not_completed_with_the_operators_own(given: dict[str, str], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        read(secret(**given), BOTH)


def test_the_version_changes_with_what_the_stores_are_opened_with() -> None:
    first = read(secret(1, **OF_POSTGRES), BOTH)
    assert read(secret(2, **OF_POSTGRES, NOTE="another"), BOTH).version == first.version
    assert read(secret(2, **(OF_POSTGRES | {"PGPASSWORD": "rotated"})), BOTH).version != first.version
    assert replace(first, stash=OF_POSTGRES).version != first.version


def test_a_secret_that_is_gone_holds_up_no_deletion() -> None:
    with pytest.raises(SecretNotFound, match="Secret 'keys' is not in this namespace"):
        read(None, BOTH)
    assert read(None, BOTH, deleting=True) == Credentials()


def test_what_a_source_needs_of_a_secret_is_looked_up() -> None:
    class Secrets:
        def __init__(self, found: dict[str, Any]) -> None:
            self._found = found

        async def get_of(self, _type: Any, namespace: str, name: str) -> dict[str, Any]:
            # A resource can name only Secrets of its own namespace.
            assert namespace == MINE.namespace
            if name not in self._found:
                raise Gone
            return dict(self._found[name])

    ref = SecretRef("keys", "spec.source.kafka.secretRef", ("username", "password"), ("password",))

    def missing(**found: dict[str, Any]) -> str | None:
        kube: Any = Secrets(found)
        return asyncio.run(missing_secret(kube, MINE, [ref]))

    assert missing() == (
        "Secret 'keys' is not in this namespace; create it with password, or correct"
        " spec.source.kafka.secretRef"
    )
    text = "Secret 'keys' has no key password, which spec.source.kafka.secretRef needs: add it"
    assert missing(keys=secret(username="me")) == text
    assert missing(keys=secret(username="me", password="open/sesame")) is None
    # From now on, no status or Event shows it.
    assert told(MINE, "denied: open/sesame") == "denied: ***"
    large = missing(keys=secret(password="x" * 20_000))
    assert large is not None
    assert "has 20000 bytes" in large
