"""Which objects, access rules and sources of a Catalog the API server accepts and rejects."""

from collections.abc import Callable
from typing import Any

import pytest

from testbed.errors import KubectlError

pytestmark = pytest.mark.kube

Make = Callable[..., dict[str, Any]]
OTHER = "6f1d7c1e-2b8a-4f5e-9d43-0c5b8f3a7e21"
DUMP = {"dump": {"url": "file:///dumps/a.json"}}
STASH = {"url": "sqlite:///data/stash"}


def named(*names: str) -> list[dict[str, str]]:
    return [{"name": name} for name in names]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"access": "Seen"}, "Unsupported value"),
    ({"access": "Observed", "bootstrap": {}}, "remove bootstrap"),
    ({"access": "Observed", "objects": {}}, "remove objects"),
    ({"access": "Observed", "restoreFrom": DUMP}, "remove restoreFrom"),
    ({"access": "Observed", "shadow": True, "stash": STASH}, "remove shadow"),
    ({"access": "Observed", "deployGeneration": 0}, "remove deployGeneration"),
    ({"access": "Observed", "upgradePolicy": "Manual"}, "remove upgradePolicy"),
    ({"access": "Observed", "deletionPolicy": "Delete"}, "remove deletionPolicy Delete"),
    ({"objects": {"roles": named("a", "a")}}, "Duplicate value"),
    ({"objects": {"roles": named("holdfast_system")}}, "are reserved"),
    ({"objects": {"databases": [{"name": "a", "schemas": named("x", "x")}]}}, "Duplicate value"),
    ({"objects": {"clusters": [{"name": "a", "replicas": 65}]}}, "replicas"),
    ({"objects": {"systemConfigurations": {"": "1"}}}, "needs a name"),
    ({"upgradePolicy": "Never"}, "Unsupported value"),
    ({"restoreFrom": {}}, "give either dump or catalog"),
    ({"restoreFrom": {**DUMP, "catalog": {"organizationId": OTHER}}}, "give either dump or catalog"),
    ({"restoreFrom": {"dump": {"url": "ftp://host/a"}}}, "must be a URL like file:///folder/dump.json"),
    ({"restoreFrom": {"dump": {"url": "s3://me:secret@host/a"}}}, "must not contain a user"),
    ({"restoreFrom": {"catalog": {"organizationId": "ACME"}}}, "organizationId"),
    ({"restoreFrom": {"catalog": {"organizationId": OTHER, "asOf": -1}}}, "asOf"),
    (
        {"restoreFrom": {"catalog": {"organizationId": OTHER, "storage": {"blob": "s3://b"}}}},
        "give url, or both",
    ),
    ({"shadow": True}, "shadow needs stash"),
    ({"backend": "Stash"}, "backend Stash needs stash"),
    ({"migrationStrategy": "OneTombstone"}, "migrationStrategy needs stash"),
    ({"stash": STASH, "migrationStrategy": "NoTombstone"}, "Unsupported value"),
    ({"shadow": True, "stash": {"url": "mysql://host/db"}}, "postgresql://host/database"),
    ({"shadow": True, "stash": {"url": "postgresql://me:secret@host/db"}}, "must not contain a user"),
    ({"bootstrap": {"replicaSizes": [""]}}, "replicaSizes"),
]


def test_what_contradicts_itself_is_refused(world: Any, make_catalog: Make) -> None:
    wrong = [make_catalog(f"c{number}", **spec) for number, (spec, _) in enumerate(REFUSED)]
    # One call for all: it goes on after each that is refused.
    with pytest.raises(KubectlError) as refused:
        world.apply(*wrong)
    answers = str(refused.value).split('Catalog.holdfast.dev "')
    for number, (spec, message) in enumerate(REFUSED):
        (answer,) = (each for each in answers if each.startswith(f'c{number}"'))
        assert message in answer, spec
    assert world.kubectl("get", "catalogs", "-o", "name") == ""


def test_what_makes_sense_is_taken(world: Any, make_catalog: Make) -> None:
    objects = {
        "databases": [{"name": "shop", "schemas": named("raw", "clean")}],
        "roles": named("analyst"),
        "clusters": [{"name": "batch", "size": "2", "replicas": 0}],
        "systemConfigurations": {"max_clusters": "10"},
    }
    world.apply(
        make_catalog("managed", objects=objects, upgradePolicy="Manual", deployGeneration=1),
        make_catalog("observed", access="Observed"),
        make_catalog("shadowed", shadow=True, stash={**STASH, "credentialsSecretRef": {"name": "keys"}}),
        make_catalog("restored", restoreFrom={"catalog": {"organizationId": OTHER, "asOf": 7}}),
    )
    managed = world.get("catalog/managed")["spec"]
    assert managed["objects"]["clusters"] == [{"name": "batch", "size": "2", "replicas": 0}]
    # Fields that a rule must be able to see unset have no default.
    assert set(world.get("catalog/observed")["spec"]) == {
        *("organizationId", "storage", "backend", "access", "shadow", "deletionPolicy", "suspend")
    }


def test_what_may_change_and_what_may_not(world: Any, make_catalog: Make) -> None:
    world.apply(make_catalog(restoreFrom=DUMP, deployGeneration=3))

    def patch(spec: str, *flags: str) -> None:
        world.kubectl("patch", "catalog/demo", "--type=merge", *flags, "-p", spec)

    corrected = '{"spec":{"restoreFrom":{"dump":{"url":"file:///dumps/b.json"}}}}'
    # Until an operator has looked, the store may hold a catalog.
    with pytest.raises(KubectlError, match="restoreFrom can't change in"):
        patch(corrected)
    patch('{"status":{"observedGeneration":1}}', "--subresource=status")
    patch(corrected)
    patch('{"status":{"shardId":"s1"}}', "--subresource=status")
    for change, message in (
        ('{"restoreFrom":{"dump":{"url":"file:///dumps/c.json"}}}', "spec.restoreFrom can't change in"),
        ('{"deployGeneration":2}', "deployGeneration can't decrease"),
        ('{"deployGeneration":null}', "deployGeneration can't decrease"),
    ):
        with pytest.raises(KubectlError) as refused:
            patch(f'{{"spec":{change}}}')
        assert message in str(refused.value)
    patch('{"spec":{"restoreFrom":null}}')
    with pytest.raises(KubectlError, match="restoreFrom can't change in"):
        patch('{"spec":{"restoreFrom":{"dump":{"url":"file:///dumps/b.json"}}}}')
    patch('{"spec":{"access":"Observed","deployGeneration":null}}')
    patch('{"spec":{"access":"Managed","deployGeneration":4}}')
