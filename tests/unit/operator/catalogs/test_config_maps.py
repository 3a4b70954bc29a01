"""The ConfigMap of a Catalog: its contents, and when it is written."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.names import Kind
from holdfast_operator.catalogs.config_maps import Connections
from holdfast_operator.catalogs.connection import (
    Absent,
    Denied,
    Foreign,
    Leaving,
    Ours,
    change,
    config_map,
    config_map_name,
    connection_of,
    missing,
)
from holdfast_operator.catalogs.facts import CatalogFacts, CatalogView
from holdfast_operator.catalogs.plan import plan
from holdfast_operator.catalogs.steps import Open, Publish
from holdfast_operator.engine.kube import Forbidden, Gone, ObjectKey
from holdfast_operator.engine.steps import Rhythm, Settle
from holdfast_operator.places.storage import Storage, resolve

ORGANIZATION = "9c1f0c52-7d3e-4b0a-9a55-0e6b4a1d7c44"
KEY = ObjectKey(Kind.CATALOG, "shop", "demo")
FACTS = CatalogFacts(ORGANIZATION, "s1", 1, 0, 18, 0, 5, (), truth="Persist")


def spec(**more: Any) -> CatalogSpec:
    return CatalogSpec.model_validate({"organizationId": ORGANIZATION, **more})


def connection(facts: CatalogFacts = FACTS, **more: Any) -> Any:
    given = spec(**more)
    storage = resolve(given, "shop", None)
    assert isinstance(storage, Storage)
    return connection_of(given, storage, facts.truth)


def test_it_says_where_whose_and_which_secrets() -> None:
    wanted = connection(
        replace(FACTS, truth="Stash"),
        storage={
            "blob": "s3://bucket/shop?endpoint=http://minio:9000&region=eu",
            "consensus": "postgresql://db/holdfast",
            "credentialsSecretRef": {"name": "stores"},
        },
        stash={"url": "postgresql://db/old", "schema": "shop", "credentialsSecretRef": {"name": "old"}},
    )
    assert wanted.data == {
        "HOLDFAST_ORGANIZATION_ID": ORGANIZATION,
        "HOLDFAST_SOURCE_OF_TRUTH": "Stash",
        "HOLDFAST_BLOB_URL": "s3://bucket/shop?endpoint=http://minio:9000&region=eu",
        "HOLDFAST_CONSENSUS_URL": "postgresql://db/holdfast",
        "HOLDFAST_CREDENTIALS_SECRET": "stores",
        "HOLDFAST_STASH_URL": "postgresql://db/old?schema=shop",
        "HOLDFAST_STASH_CREDENTIALS_SECRET": "old",
    }
    assert wanted.how.startswith('linked_catalog(stash_catalog(os.environ["HOLDFAST_STASH_URL"]), ')
    assert 'blob=os.environ["HOLDFAST_BLOB_URL"], consensus=os.environ["HOLDFAST_CONS' in wanted.how


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2@db:5432/holdfast", "postgresql://db:5432/holdfast"),
        ("postgresql://db/x?password=hunter2&sslmode=require", "postgresql://db/x?sslmode=require"),
        ("s3://b/p?endpoint=http://me:hunter2@minio&region=eu", "s3://b/p?region=eu"),
        ("s3://b/p?endpoint=http%3A%2F%2Fme%3Ahunter2%40minio", "s3://b/p"),
        ("s3://b/p?aws_secret_access_key=hunter2", "s3://b/p"),
        ("file:///var/lib/holdfast/a@b", "file:///var/lib/holdfast/a@b"),
        ("sqlite:///stash.db", "sqlite:///stash.db"),
    ],
)
def test_nothing_secret_is_in_it(url: str, shown: str) -> None:
    wanted = connection_of(spec(), Storage(url=url), "Persist")
    assert wanted.data["HOLDFAST_URL"] == shown


def test_names_are_of_their_catalog_alone_and_never_too_long() -> None:
    assert config_map_name("demo") == "demo-connection"
    long = [config_map_name("a" * 242), config_map_name("a" * 243), config_map_name("a" * 252 + "b")]
    assert len(set(long)) == 3
    assert all(len(each) <= 253 and each.endswith("-connection") for each in long)


def test_only_what_differs_is_written() -> None:
    wanted = connection(storage={"url": "file:///there"})
    body = config_map(KEY, "uid", wanted)
    assert change(body, wanted) == {}
    assert not missing(Ours(body), wanted)
    moved = connection(replace(FACTS, truth="Stash"), storage={"url": "file:///there"})
    assert change(body, moved) == {"data": {"HOLDFAST_SOURCE_OF_TRUTH": "Stash"}}
    bare = {"metadata": {"name": "demo-connection"}}
    assert change(bare, wanted)["data"] == wanted.data
    assert missing(Absent(), wanted)
    assert not any(missing(each, wanted) for each in (None, Leaving(), Foreign(), Denied("no")))


def test_the_plan_writes_before_it_settles(observed_open: CatalogView) -> None:
    step = plan(replace(observed_open, connection=Absent()), Rhythm())
    assert isinstance(step, Publish)
    written = Ours(config_map(KEY, "uid", step.connection))
    rest = plan(replace(observed_open, connection=written), Rhythm())
    assert isinstance(rest, Settle)
    assert rest.requeue_after == Rhythm().steady
    assert rest.conditions == ()
    # Whoever is to initialize an observed one reads it before there is anything.
    new = replace(observed_open, opened=None, facts=None)
    assert plan(replace(new, connection=Absent()), Rhythm()) == step
    assert isinstance(plan(replace(new, connection=Ours({"metadata": {}})), Rhythm()), Open)
    # That of a Catalog which is gone goes by itself: that is soon.
    leaving = plan(replace(observed_open, connection=Leaving()), Rhythm())
    assert isinstance(leaving, Settle)
    assert (leaving.requeue_after, leaving.conditions) == (Rhythm().unsteady, ())


@pytest.fixture
def observed_open() -> CatalogView:
    given = spec(storage={"url": "file:///there"}, access="Observed")
    storage = resolve(given, "shop", None)
    seen = CatalogView(name="shop/demo", spec=given, storage=storage)
    opening = plan(seen, Rhythm()).opening  # type: ignore[attr-defined]
    return replace(seen, opened=opening, facts=FACTS)


class Server:
    """ConfigMaps as the API server keeps them, behind something that may change what is written."""

    def __init__(self) -> None:
        self.body: dict[str, Any] | None = None
        self.webhook: dict[str, str] = {}
        self.writes = 0
        self.refuses = False

    async def get_of(self, *_: object) -> dict[str, Any]:
        if self.body is None:
            raise Gone("gone")
        return self.body

    async def create(self, _type: object, _namespace: str, body: dict[str, Any]) -> None:
        if self.refuses:
            raise Forbidden("the quota is used up")
        self.writes += 1
        self.body = {**body, "data": {**body["data"], **self.webhook}}
        self.body["metadata"]["resourceVersion"] = str(self.writes)


def test_a_write_that_something_changes_at_once_is_not_repeated_at_once() -> None:
    server = Server()
    server.webhook = {"HOLDFAST_URL": "file:///elsewhere"}
    connections = Connections(server)  # type: ignore[arg-type]
    wanted = connection(storage={"url": "file:///there"})

    async def reconcile() -> Any:
        assert isinstance(await connections.look(KEY, "uid"), Absent)
        await connections.publish(KEY, "uid", wanted)
        return await connections.look(KEY, "uid")

    seen = asyncio.run(reconcile())
    assert isinstance(seen, Denied)
    assert not missing(seen, wanted)
    assert server.writes == 1
    # The next reconcile tries again.
    assert missing(asyncio.run(connections.look(KEY, "uid")), wanted)


def test_a_refused_write_is_told_and_the_status_keeps_what_it_said() -> None:
    server = Server()
    server.refuses = True
    connections = Connections(server)  # type: ignore[arg-type]
    settle = Settle(health=None, fields={"epoch": 1})  # type: ignore[arg-type]
    before = {"connection": {"configMap": "demo-connection"}}
    # Nobody has looked yet.
    assert connections.shown(KEY, before, settle).fields == {"epoch": 1, **before}

    async def reconcile() -> Any:
        await connections.look(KEY, "uid")
        await connections.publish(KEY, "uid", connection(storage={"url": "file:///there"}))
        return await connections.look(KEY, "uid")

    assert asyncio.run(reconcile()) == Denied("the quota is used up")
    assert isinstance(asyncio.run(connections.look(KEY, "uid")), Absent)
    assert connections.shown(KEY, before, settle).fields == {"epoch": 1}
