"""The template of Spark jobs: how its parts are merged, and what it may contain."""

from typing import Any

import pytest

from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.spark import SparkOverride, SparkTemplate, effective
from holdfast_operator.engine.specs import parse_part, parse_spec
from holdfast_operator.sparkapps.limits import QUEUES, TemplateLimits

COLLECTION = {"catalogRef": {"name": "demo"}, "columns": [{"name": "id", "type": "int64"}]}
RESERVED = "names that Kubernetes, Spark or Holdfast use"
ZONES = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}
LARGE = {
    "preferredDuringSchedulingIgnoredDuringExecution": [
        {
            "weight": 1,
            "preference": {
                "matchExpressions": [{"key": "zone", "operator": "In", "values": ["z" * 63] * 16}] * 4
            },
        }
    ]
    * 8
}
SPREAD = {"preferredDuringSchedulingIgnoredDuringExecution": []}


def template(**fields: Any) -> SparkTemplate:
    return SparkTemplate.model_validate(fields)


def problem(**spark: Any) -> str:
    found, text = parse_spec(StorageCollectionSpec, {"metadata": {}, "spec": COLLECTION | {"spark": spark}})
    assert (found is None) == bool(text)
    return text


def test_without_parts_the_template_has_the_defaults() -> None:
    assert effective() == effective(None, template(), SparkOverride()) == SparkTemplate()


def test_later_parts_win_field_by_field() -> None:
    catalog = template(image="r/spark:1", driver={"memory": "2Gi", "cores": 2}, maxAttempts=5)
    collection = template(driver={"memory": "4Gi"}, serviceAccount="night")
    job = SparkOverride.model_validate({"executor": {"instances": 3}, "attemptDeadline": "2h"})
    found = effective(catalog, collection, job)
    assert (found.image, found.service_account, found.max_attempts) == ("r/spark:1", "night", 5)
    assert (found.driver.memory, found.driver.cores) == ("4Gi", 2)
    assert (found.executor.instances, found.executor.memory) == (3, "1Gi")
    assert (found.attempt_deadline_seconds, found.start_deadline_seconds) == (7200, 300)


def test_a_value_that_is_the_default_wins_if_it_is_set() -> None:
    assert effective(template(maxAttempts=5), template(maxAttempts=3)).max_attempts == 3
    assert effective(template(driver={"cores": 4}), template(driver={"cores": 1})).driver.cores == 1


def test_maps_are_merged_by_key_and_lists_are_replaced() -> None:
    catalog = template(
        sparkConf={"spark.sql.a": "1", "spark.sql.b": "1"},
        pod={
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "affinity": {"nodeAffinity": ZONES},
            "imagePullSecrets": [{"name": "registry"}],
        },
    )
    collection = template(
        sparkConf={"spark.sql.b": "2"},
        pod={"nodeSelector": {"zone": "a"}, "tolerations": [], "affinity": {"podAntiAffinity": SPREAD}},
    )
    found = effective(catalog, collection)
    assert found.spark_conf == {"spark.sql.a": "1", "spark.sql.b": "2"}
    assert found.pod.node_selector == {"disk": "ssd", "zone": "a"}
    assert found.pod.tolerations == ()
    assert found.pod.affinity is not None
    assert found.pod.affinity.in_pod() == {"nodeAffinity": ZONES, "podAntiAffinity": SPREAD}
    assert [each.name for each in found.pod.image_pull_secrets] == ["registry"]


def test_parts_can_be_merged_one_by_one() -> None:
    parts = (
        template(driver={"cores": 2}, sparkConf={"spark.sql.a": "1"}),
        template(driver={"memory": "2Gi"}, sparkConf={"spark.sql.b": "1"}),
        SparkOverride.model_validate({"driver": {"cores": 3}, "maxAttempts": 3}),
    )
    first, second, third = parts
    assert effective(effective(first, second), third) == effective(*parts)
    assert effective(first, effective(second, third)) == effective(*parts)
    assert first == template(driver={"cores": 2}, sparkConf={"spark.sql.a": "1"}), "parts stay as they are"


def test_a_setting_can_move_between_parts_without_another_template() -> None:
    """So a job that follows a source goes on: its slot contains a digest of the whole template."""
    own = template(driver={"cores": 2})
    assert effective(own, template()).model_dump() == effective(template(), own).model_dump()


@pytest.mark.parametrize(
    ("spark", "text"),
    [
        ({"startDeadline": "4s"}, "spec.spark.startDeadline: must be between 5s and 1d"),
        ({"startDeadline": "2d"}, "spec.spark.startDeadline: must be between 5s and 1d"),
        ({"ttl": "59s"}, "spec.spark.ttl: must be between 60s and 3650d"),
        ({"attemptDeadline": "30s"}, "must be between 60s and 365d"),
        ({"driver": {"memory": "1g"}}, "spec.spark.driver.memory"),
        ({"pod": {"labels": {"holdfast.dev/job": "x"}}}, RESERVED),
        (
            {"pod": {"labels": {"app.kubernetes.io/name": "x"}}},
            RESERVED,
        ),
        ({"pod": {"annotations": {"spark-role": "x"}}}, RESERVED),
        ({"metadata": {"labels": {"job-name": "x"}}}, RESERVED),
        ({"metadata": {"labels": {"a b": "x"}}}, "must have keys like example.com/name"),
        ({"metadata": {"labels": {"a\n": "x"}}}, "must have keys like example.com/name"),
        ({"metadata": {"labels": {"a": "x y"}}}, "must have values of at most 63"),
        ({"pod": {"tolerations": [{"value": "x"}]}}, "pod.tolerations.0: operator Equal needs a key"),
        ({"pod": {"tolerations": [{"operator": "Exists", "value": "x"}]}}, "Exists takes no value"),
        (
            {"pod": {"tolerations": [{"key": "a", "tolerationSeconds": 1}]}},
            "tolerationSeconds needs the effect NoExecute",
        ),
        ({"pod": {"securityContext": {"runAsUser": 0}}}, "securityContext.runAsUser"),
        ({"pod": {"securityContext": {"privileged": True}}}, "securityContext.privileged: unknown"),
        (
            {"pod": {"affinity": {"nodeAffinity": {"forbidden": {}}}}},
            "nodeAffinity.forbidden: unknown",
        ),
        ({"pod": {"affinity": {"nodeAffinity": LARGE}}}, "must be at most 16,384 bytes as JSON, not 35,"),
        ({"pod": {"tolerations": [{"key": "a b", "operator": "Exists"}]}}, "must be the key of a taint"),
        ({"pod": {"tolerations": [{"key": "a", "value": "b c"}]}}, "must be the value of a taint"),
        (
            {"pod": {"volumes": [{"name": "holdfast-store-keys", "mountPath": "/a"}]}},
            "volume names that begin with holdfast- are reserved",
        ),
        (
            {
                "pod": {
                    "affinity": {
                        "podAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": [
                                {"topologyKey": "zone", "namespaceSelector": {}}
                            ]
                        }
                    }
                }
            },
            "0.namespaceSelector: unknown",
        ),
    ],
)
def test_what_no_template_may_contain(spark: dict[str, Any], text: str) -> None:
    assert text in problem(**spark)


QUEUED = {"pod": {"labels": {"yunikorn.apache.org/queue": "a"}}, "metadata": {"labels": {QUEUES[0]: "b"}}}
TEAM = {"metadata": {"annotations": {"example.com/team": "x"}}}
FIRST = {"pod": {"priorityClassName": "first"}}


@pytest.mark.parametrize(
    ("limits", "spark", "text"),
    [
        (TemplateLimits(), {}, None),
        (TemplateLimits(), QUEUED, None),
        (TemplateLimits(metadata=()), QUEUED, "spark.pod.labels has yunikorn.apache.org/queue"),
        (TemplateLimits(), TEAM, "spark.metadata.annotations has example.com/team"),
        (TemplateLimits(metadata=("example.com/*",)), TEAM, None),
        (TemplateLimits(metadata=("example.com",)), TEAM, "spark.metadata.annotations has example.com/team"),
        (TemplateLimits(), FIRST, "spark.pod.priorityClassName is first"),
        (TemplateLimits(priority_classes=("fir",)), FIRST, "spark.pod.priorityClassName is first"),
        (TemplateLimits(priority_classes=("first",)), FIRST, None),
    ],
)
def test_the_administrator_decides_what_depends_on_the_cluster(
    limits: TemplateLimits, spark: dict[str, Any], text: str | None
) -> None:
    found = limits.objection(template(**spark))
    if text is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith(text)
        assert "ask the administrator" in found


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("/etc/holdfast", True),
        ("/etc/holdfast/store-keys/", True),
        ("//etc//holdfast/../holdfast/secrets/kafka", True),
        ("/etc/holdfast-more", False),
        ("/etc", False),
        ("/data/etc/holdfast", False),
    ],
)
def test_no_volume_hides_the_keys_that_the_operator_mounts(path: str, refused: bool) -> None:
    names = (
        "spark.kubernetes.driver.secrets.mine",
        "spark.kubernetes.executor.volumes.emptyDir.x.mount.path",
    )
    for place, spark in (
        ("spark.pod.volumes", {"pod": {"volumes": [{"name": "x", "mountPath": path}]}}),
        *((name, {"sparkConf": {name: path}}) for name in names),
    ):
        found = TemplateLimits().objection(template(**spark)) or ""
        assert found.startswith(f"{place} mounts {path}, which is not allowed") is refused


def test_a_template_of_a_catalog_that_this_operator_does_not_know_is_named() -> None:
    body: dict[str, Any] = {"metadata": {}, "spec": {"spark": {"driver": {"gpus": 1}}}}
    found, text = parse_part(SparkTemplate, body, "spark")
    assert found is None
    assert text.startswith("spec.spark.driver.gpus: unknown to this operator, because the CRD is newer")
    deleting = {**body, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert parse_part(SparkTemplate, deleting, "spark") == (SparkTemplate(), "")
    assert parse_part(SparkTemplate, {"metadata": {}, "spec": {}}, "spark") == (SparkTemplate(), "")
