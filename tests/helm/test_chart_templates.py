"""What the charts render for each value."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import promql_parser
import pytest
import yaml
from kubernetes.client import ApiClient, Configuration
from prometheus_client import CollectorRegistry

from helm.values import ALL_ON, HA
from holdfast_operator.__main__ import _limits, _parser
from holdfast_operator.api.generate import RESOURCES, ROLES, cluster_role, custom_resource_definition
from holdfast_operator.api.names import OPERATORS
from holdfast_operator.app import STUCK_WAIT, Operator, Options
from holdfast_operator.console.command import options_of
from holdfast_operator.engine.kube import Kube
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.places.own_credentials import VARIABLES
from holdfast_operator.sparkapps import images
from holdfast_operator.sparkapps.limits import TemplateLimits
from testbed import helm
from testbed.errors import HelmError
from testbed.helm import CHARTS, find, template
from testbed.takeover import TAKEOVER_S

pytestmark = pytest.mark.helm

ROOT = CHARTS.parent


@pytest.fixture(scope="module")
def default() -> list[dict[str, Any]]:
    return template("holdfast-operator")


@pytest.fixture(scope="module")
def everything() -> list[dict[str, Any]]:
    return template("holdfast-operator", ALL_ON)


def pod_specs(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for each in objects:
        if each["kind"] == "Pod":
            yield each["spec"]
        elif each["kind"] in {"Deployment", "Job"}:
            yield each["spec"]["template"]["spec"]


def operator(objects: list[dict[str, Any]]) -> dict[str, Any]:
    spec = find(objects, "Deployment")["spec"]["template"]["spec"]
    return dict(spec["containers"][0])


def test_helm_finds_nothing_to_complain_about() -> None:
    told = helm.run(
        "lint", "--strict", "--kube-version", helm.KUBE_VERSION, *sorted(CHARTS.glob("holdfast-*"))
    )
    assert "2 chart(s) linted, 0 chart(s) failed" in told


def test_out_of_the_box_there_is_one_operator_with_a_volume(default: list[dict[str, Any]]) -> None:
    assert sorted(each["kind"] for each in default) == [
        *("ClusterRole", "ClusterRoleBinding", "Deployment", "Job", "NetworkPolicy"),
        *("PersistentVolumeClaim", "Pod", "Role", "RoleBinding", "Service", "ServiceAccount"),
    ]
    spec = find(default, "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    claim = find(default, "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "--data-dir=/var/lib/holdfast" in operator(default)["args"]
    mounts = {each["name"]: each["mountPath"] for each in operator(default)["volumeMounts"]}
    assert mounts == {"tmp": "/tmp", "data": "/var/lib/holdfast"}


def test_an_existing_claim_is_used() -> None:
    embedded = {"existingClaim": "mine"}
    objects = template("holdfast-operator", {"storage": {"embedded": embedded}})
    assert not [each for each in objects if each["kind"] == "PersistentVolumeClaim"]
    volumes = find(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert volumes[1]["persistentVolumeClaim"]["claimName"] == "mine"


def test_without_a_volume_replicas_roll_and_keep_apart() -> None:
    objects = template("holdfast-operator", HA)
    spec = find(objects, "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (2, "RollingUpdate")
    assert "podAntiAffinity" in spec["template"]["spec"]["affinity"]
    assert not [argument for argument in operator(objects)["args"] if argument.startswith("--data-dir")]
    assert not [each for each in objects if each["kind"] == "PersistentVolumeClaim"]


def test_a_single_operator_has_no_budget_that_would_stop_a_drain() -> None:
    off = {"podDisruptionBudget": {"enabled": False}}
    for values in ({**HA, "replicas": 1}, {**HA, **off}):
        objects = template("holdfast-operator", values)
        assert not [each for each in objects if each["kind"] == "PodDisruptionBudget"]
    assert find(template("holdfast-operator", HA), "PodDisruptionBudget")["spec"]["minAvailable"] == 1


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"replicas": 2}, "for more replicas, set storage.embedded.enabled=false"),
        ({**HA, "leaderElection": {"enabled": False}}, "requires leaderElection"),
        ({"replicas": 0.5}, "/replicas"),
        ({"replica": 1}, "replica"),
        ({"image": {"digest": "sha256:1"}}, "/image/digest"),
        ({"log": {"level": "loud"}}, "/log/level"),
        ({"spark": {"adapter": "yarn"}}, "/spark/adapter"),
        ({"watch": {"namespaces": ["A b"]}}, "/watch/namespaces/0"),
        ({"watch": {"namespaces": [""]}}, "/watch/namespaces/0"),
        ({"credentialsSecret": "My_Stores"}, "/credentialsSecret"),
        ({"serviceAccount": {"name": "A"}}, "/serviceAccount/name"),
        ({"spark": {"serviceAccount": {"name": ""}}}, "/spark/serviceAccount/name"),
        (
            {"networkPolicy": {"stores": [{"ports": [{"port": 70000}]}]}},
            "/networkPolicy/stores/0/ports/0",
        ),
        ({"networkPolicy": {"stores": [{"port": 443}]}}, "/networkPolicy/stores/0"),
        ({"networkPolicy": {"metricsFrom": [{"pods": {}}]}}, "/networkPolicy/metricsFrom/0"),
        ({"storage": {"embedded": {"size": "much"}}}, "/storage/embedded/size"),
        ({"networkPolicy": {"apiServerPorts": []}}, "/networkPolicy/apiServerPorts"),
        ({"networkPolicy": {"egress": "open"}}, "/networkPolicy/egress"),
        ({"leaderElection": {"retryPeriod": 0}}, "/leaderElection/retryPeriod"),
        ({"leaderElection": {"leaseDuration": 8}}, "leaseDuration (8) must be greater"),
        ({**HA, "storage": {"embedded": {"enabled": False}, "shared": True}}, "storage.shared"),
        (
            {"spark": {"serviceAccount": {"create": True, "name": "holdfast-operator"}}},
            "spark.serviceAccount.name (holdfast-operator) is the ServiceAccount of the operator",
        ),
        (
            {"spark": {"serviceAccount": {"create": True, "name": "x"}}, "serviceAccount": {"name": "x"}},
            "spark.serviceAccount.name (x) is the ServiceAccount of the operator",
        ),
    ],
)
def test_what_can_not_work_is_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(HelmError, match=re.escape(told)):
        template("holdfast-operator", values)


OWN_CREDENTIALS = [
    ({"credentialsSecret": "stores"}, "credentialsSecret"),
    (
        {"serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}}},
        "serviceAccount.annotations (eks.amazonaws.com/role-arn)",
    ),
    ({"podAnnotations": {"iam.amazonaws.com/role": "x"}}, "podAnnotations (iam.amazonaws.com/role)"),
    *(({"extraEnv": [{"name": name, "value": "x"}]}, f"extraEnv ({name})") for name in VARIABLES),
]
LET_ALL = "letAllNamespacesUseOwnCredentialsAnywhere"


@pytest.mark.parametrize(("values", "told"), OWN_CREDENTIALS)
def test_all_namespaces_get_the_operators_credentials_only_if_that_is_permitted(
    values: dict[str, Any], told: str
) -> None:
    with pytest.raises(HelmError) as refused:
        template("holdfast-operator", values)
    line = next(line for line in str(refused.value).splitlines() if LET_ALL in line)
    assert f"{told} gives the operator credentials that Catalogs of all namespaces could use" in line
    for bounds in (
        {"storage": {"allowedLocations": ["s3://bucket"]}},
        {"watch": {"namespaces": ["a"]}},
        {"storage": {LET_ALL: True}},
    ):
        assert template("holdfast-operator", {**values, **bounds})


def test_an_environment_without_credentials_needs_no_permission() -> None:
    values = {
        "extraEnv": [{"name": "AWS_REGION", "value": "eu"}, {"name": "PGSSLMODE", "value": "verify-full"}],
        "serviceAccount": {"annotations": {"team": "data"}},
    }
    assert template("holdfast-operator", values)


def test_the_permission_is_passed_on_to_the_operator_and_the_console() -> None:
    values = {"credentialsSecret": "stores", "storage": {LET_ALL: True}, "console": {"enabled": True}}
    for given, expected in ((values, True), ({"console": {"enabled": True}}, False)):
        deployments = [each for each in template("holdfast-operator", given) if each["kind"] == "Deployment"]
        assert len(deployments) == 2
        for each in deployments:
            (container,) = each["spec"]["template"]["spec"]["containers"]
            assert _parser().parse_args(container["args"]).own_credentials_anywhere is expected


def paths(values: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Every value and every group of them that the schema knows."""
    for name, inner in schema["properties"].items():
        if name != "global":
            yield (name,)
            if "properties" in inner:
                yield from ((name, *below) for below in paths(values[name], inner))


def test_no_value_may_be_null() -> None:
    for chart in ("holdfast-crds", "holdfast-operator"):
        schema = json.loads((CHARTS / chart / "values.schema.json").read_text())
        every = list(paths(yaml.safe_load((CHARTS / chart / "values.yaml").read_text()), schema))
        refused = set()
        for path in every:
            group = schema
            for name in path[:-1]:
                group = group["properties"][name]
            if path[-1] in group["required"]:
                refused.add(path)
        assert refused == set(every)
        # Helm takes what is null away before it looks at the schema.
        nothing: dict[str, Any] = {path[0]: None for path in every}
        with pytest.raises(HelmError, match="missing properties") as caught:
            template(chart, nothing)
        assert all(f"'{name}'" in str(caught.value) for name in nothing)


@pytest.mark.parametrize("ports", [None, [], [None]])
def test_the_way_to_the_api_server_is_never_every_port(ports: Any) -> None:
    with pytest.raises(HelmError, match=r"/networkPolicy.*apiServerPorts|/networkPolicy/apiServerPorts"):
        template("holdfast-operator", {"networkPolicy": {"enabled": True, "apiServerPorts": ports}})


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"to": []},
        {"ports": []},
        {"to": None, "ports": [{"port": 443}]},
        {"ports": [{}]},
        {"ports": [{"port": None, "protocol": "TCP"}]},
        {"to": [{"podSelector": {"matchLabels": None}}]},
        {"to": [{"namespaceSelector": {"matchLabels": {}}}]},
        {"to": [{"ipBlock": {"cidr": None}}]},
    ],
)
def test_a_rule_that_would_open_more_than_it_names_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(HelmError, match="/networkPolicy/stores/1"):
        template(
            "holdfast-operator",
            {"networkPolicy": {"enabled": True, "stores": [{"ports": [{"port": 443}]}, rule]}},
        )


def strings(value: Any) -> Iterator[Any]:
    """What is named or labelled in objects: names, namespaces and the values of labels, at any depth."""
    if isinstance(value, list):
        for each in value:
            yield from strings(each)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key in {"labels", "matchLabels"}:
                yield from inner.values()
            elif key in {"name", "namespace", "claimName", "storageClassName"} or key.endswith("Name"):
                yield inner
            else:
                yield from strings(inner)


@pytest.mark.parametrize("like", ["123", "0x1f", "on", "null"])
def test_names_that_look_like_something_else_stay_names(like: str) -> None:
    values = {
        "nameOverride": like,
        "fullnameOverride": "on",
        "watch": {"namespaces": [like]},
        "storage": {"embedded": {"storageClassName": like}},
        "serviceAccount": {"name": like},
        "spark": {"serviceAccount": {"create": True, "name": f"spark-{like}"}},
        "credentialsSecret": like,
        "priorityClassName": like,
    }
    ha = {"replicas": 2, "storage": {"embedded": {"enabled": False}}}
    for given in (values, {**ALL_ON, **values, **ha}):
        found = list(strings(template("holdfast-operator", given, name=like)))
        assert found.count(like) > 10
        assert {type(each) for each in found} == {str}
    crds = list(strings([each["metadata"] for each in template("holdfast-crds", name=like)]))
    assert crds.count(like) == len(RESOURCES) + len(ROLES)


@pytest.mark.parametrize("release", ["2024", "my.release"])
def test_a_release_whose_service_could_have_no_name_is_refused(release: str) -> None:
    with pytest.raises(HelmError, match=f"{release}-holdfast-operator is not a valid name .* set fullname"):
        template("holdfast-operator", name=release)
    named = template("holdfast-operator", {"fullnameOverride": "mine"}, name=release)
    assert find(named, "Service")["metadata"]["name"] == "mine"
    assert find(named, "Service")["spec"]["selector"]["app.kubernetes.io/instance"] == release


@pytest.mark.parametrize(
    ("chart", "values", "told"),
    [
        (
            "holdfast-operator",
            {"podLabels": {"app.kubernetes.io/component": "x"}},
            "podLabels: the chart sets the label app.kubernetes.io/component",
        ),
        (
            "holdfast-operator",
            {"dashboard": {"labels": {"helm.sh/chart": "x"}}},
            "dashboard.labels: the chart sets the label helm.sh/chart",
        ),
        (
            "holdfast-crds",
            {"labels": {"app.kubernetes.io/name": "x"}},
            "labels: the chart sets the label app.kubernetes.io/name",
        ),
        (
            "holdfast-crds",
            {"annotations": {"helm.sh/resource-policy": "keep"}},
            "annotations: the chart sets the annotation helm.sh/resource-policy",
        ),
    ],
)
def test_labels_of_the_chart_are_not_given_twice(chart: str, values: dict[str, Any], told: str) -> None:
    with pytest.raises(HelmError, match=f"{told} itself; "):
        template(chart, values)


@pytest.mark.parametrize(
    "place",
    [
        *("gs://a", "team-a", "file:///a/../b", "file:///a/..", "s3://b/a/%2E./c", "file:///a?b=c"),
        *("postgresql://u:pw@h/db", "postgresql://u:p/w@h/db", "postgresql://u%3Apw%40h/db", "s3://u:pw@b/x"),
        *(
            "s3://b/x#y",
            "s3://b/x?sk=pw",
            "postgresql://h/db?sslmode=require",
            "postgresql://h/db?schema=a-b",
            "postgresql://h/db?schema=",
            "s3://b?endpoint=http://u:p@h",
            "s3://b?endpoint=http://h/other",
            "s3://b?endpoint=h",
            "s3://b?region=eu",
        ),
    ],
)
def test_the_chart_refuses_the_places_that_the_operator_refuses(place: str) -> None:
    with pytest.raises(HelmError, match="/storage/allowedLocations/1"):
        template("holdfast-operator", {"storage": {"allowedLocations": ["file:///srv", place]}})
    with pytest.raises(SystemExit):
        _parser().parse_args(["run", "--allow-location", place])


def test_the_chart_refuses_a_placeholder_that_is_none() -> None:
    for place in ("s3://bucket/{ns}", "s3://bucket/{{namespace}}"):
        with pytest.raises(HelmError, match=r"allowedLocations: .* the only placeholder is {namespace},"):
            template("holdfast-operator", {"storage": {"allowedLocations": ["s3://b/{namespace}", place]}})


def test_the_chart_takes_the_places_that_the_operator_takes() -> None:
    places = [
        *("file:///srv/a@b..c", "sqlite:///srv/x", "s3://bucket/{namespace}", "s3://bucket/a@b/%40"),
        *(
            "s3://b/x?endpoint=http://minio:9000",
            "s3://b/x?endpoint=https%3A%2F%2F%5B::1%5D%3A9000%2F",
            "postgres://h:5432/db",
            "postgresql://h/{namespace}?schema=x",
            "postgresql://h/db?schema=a_{namespace}",
        ),
    ]
    told = template("holdfast-operator", {"storage": {"allowedLocations": places}})
    (container,) = find(told, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert [each for each in container["args"] if each.startswith("--allow-location")] == [
        f"--allow-location={place}" for place in places
    ]
    assert _parser().parse_args(container["args"]).allow_location == places


def test_every_pod_is_restricted(everything: list[dict[str, Any]], default: list[dict[str, Any]]) -> None:
    pods = [*pod_specs(everything), *pod_specs(default)]
    assert len(pods) == 6
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 65532
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"]["memory"]
            assert container["resources"]["limits"]["memory"]
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


def test_the_operator_understands_its_arguments(
    everything: list[dict[str, Any]], default: list[dict[str, Any]]
) -> None:
    args = _parser().parse_args(operator(everything)["args"])
    assert (args.command, args.namespace, args.listen) == ("run", ["a", "b"], ("0.0.0.0", 8080))
    assert (args.steady_interval, args.data_dir, args.log_format) == (30.0, None, "json")
    args = _parser().parse_args(operator(default)["args"])
    assert (args.namespace, str(args.data_dir), args.store_deadline) == ([], "/var/lib/holdfast", 30.0)
    hook = find(everything, "Job")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert _parser().parse_args(hook).namespace == ["a", "b"]
    url = _parser().parse_args(find(everything, "Pod")["spec"]["containers"][0]["args"]).url
    assert url == "http://holdfast-operator.holdfast.svc:8080/readyz"


def test_out_of_the_box_a_standby_acts_as_soon_as_one_of_the_command_line_does_and_in_time() -> None:
    def timing(*arguments: str) -> tuple[str, float, float, float]:
        args = _parser().parse_args(arguments)
        return args.lease, args.lease_duration, args.lease_renew_deadline, args.lease_retry_period

    charts = timing(*operator(template("holdfast-operator", HA))["args"])
    assert charts == timing("run", "--lease")
    _, duration, _, retry = charts
    assert duration + retry <= TAKEOVER_S


def test_what_is_further_given_gets_there(everything: list[dict[str, Any]]) -> None:
    pod = find(everything, "Deployment")["spec"]["template"]
    container = pod["spec"]["containers"][0]
    assert pod["metadata"]["annotations"] == {"a": "b"}
    assert pod["metadata"]["labels"]["team"] == "data"
    assert container["envFrom"] == [{"secretRef": {"name": "stores"}}]
    assert {"name": "AWS_REGION", "value": "eu-central-1"} in container["env"]
    assert {"name": "ca", "mountPath": "/ca"} in container["volumeMounts"]
    assert pod["spec"]["nodeSelector"] == {"disk": "fast"}
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert pod["spec"]["priorityClassName"] == "system-cluster-critical"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["spec"]["topologySpreadConstraints"][0]["topologyKey"] == "zone"
    assert (
        find(everything, "ServiceAccount", "holdfast-operator")["metadata"]["annotations"]["role"] == "writer"
    )
    assert find(everything, "Service")["metadata"]["annotations"] == {"c": "d"}


def test_in_namespaces_there_are_roles_and_of_the_cluster_only_our_own_kinds(
    everything: list[dict[str, Any]],
) -> None:
    cluster = [each for each in everything if each["kind"].startswith("Cluster")]
    assert [each["kind"] for each in cluster] == ["ClusterRole", "ClusterRoleBinding"]
    # A Role goes with its namespace, before the resources that wait for the operator do.
    assert {group for rule in cluster[0]["rules"] for group in rule["apiGroups"]} == {"holdfast.dev"}
    roles = [each["metadata"] for each in everything if each["kind"] == "Role"]
    places = {(role["name"], role.get("namespace")) for role in roles}
    assert places == {
        *(("holdfast-operator", each) for each in "ab"),
        *(("holdfast-spark", each) for each in "ab"),
        ("holdfast-operator-lease", None),
    }
    for binding in (each for each in everything if each["kind"].endswith("RoleBinding")):
        if binding["metadata"]["name"].endswith("holdfast-operator"):
            (subject,) = binding["subjects"]
            assert (subject["name"], subject["namespace"]) == ("holdfast-operator", "holdfast")


def test_no_role_has_a_wildcard_and_secrets_are_never_listed(
    everything: list[dict[str, Any]], default: list[dict[str, Any]]
) -> None:
    rules = [
        rule for each in [*everything, *default] for rule in each.get("rules", ()) if "apiGroups" in rule
    ]
    assert rules
    for rule in rules:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        if "secrets" in rule["resources"]:
            assert rule["verbs"] == ["get"]


KUBEFLOW = ("sparkoperator.k8s.io", "sparkapplications", "create,list,watch,delete")
APACHE = ("spark.apache.org", "sparkapplications", "create,list,watch,delete")
PLAIN = [("batch", "jobs", "create,list,watch,delete"), ("", "pods", "list,watch"), ("", "events", "list")]


@pytest.mark.parametrize(
    ("spark", "argument", "expected"),
    [
        ({}, "auto", [KUBEFLOW, APACHE, *PLAIN]),
        ({"adapter": "kubeflow"}, "kubeflow", [KUBEFLOW]),
        ({"adapter": "apache"}, "apache", [APACHE]),
        ({"adapter": "job"}, "job", PLAIN),
        ({"adapter": "job", "enabled": False}, "none", []),
    ],
)
def test_the_role_has_what_the_chosen_way_to_run_spark_needs_and_no_more(
    spark: dict[str, Any], argument: str, expected: list[tuple[str, str, str]]
) -> None:
    objects = template("holdfast-operator", {"spark": spark})
    rules = [
        (group, resource, ",".join(rule["verbs"]))
        for rule in find(objects, "ClusterRole")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    ]
    ours = {"sparkapplications", "jobs", "pods"}
    assert [each for each in rules if each[1] in ours or each[1:] == ("events", "list")] == expected
    args = _parser().parse_args(operator(objects)["args"])
    assert (args.spark_adapter, args.spark_max_jobs) == (argument, None)


def test_in_namespaces_the_role_is_that_of_the_cluster_but_for_what_has_no_namespace() -> None:
    everywhere = find(template("holdfast-operator"), "ClusterRole")["rules"]
    in_one = template("holdfast-operator", {"watch": {"namespaces": ["a"]}})
    roles = [each for each in in_one if each["kind"] == "Role" and each["metadata"].get("namespace") == "a"]
    (role,) = roles
    ours = find(in_one, "ClusterRole")["rules"]
    wanted = [rule for rule in everywhere if rule["resources"] != ["customresourcedefinitions"]]
    assert [*ours, *role["rules"]] == wanted


@pytest.mark.parametrize(
    ("own", "image", "expected"),
    [
        ({}, {}, images.DEFAULT),
        ({"repository": "r/x"}, {}, f"r/x:{images.VERSION}"),
        ({"repository": "r/x", "tag": "9"}, {}, "r/x:9"),
        ({"repository": "r/x", "tag": "9-slim"}, {}, "r/x:9"),
        ({"repository": "r/x", "digest": f"sha256:{'0' * 64}"}, {}, f"r/x@sha256:{'0' * 64}"),
        ({"repository": "r/x", "tag": "9-slim", "digest": f"sha256:{'0' * 64}"}, {}, "r/x:9"),
        ({"repository": "r/x", "tag": "9"}, {"repository": "r/spark"}, "r/spark:9"),
        ({"repository": "r/x", "tag": "9"}, {"tag": "8"}, "r/x:8"),
        ({}, {"repository": "r.example/spark", "tag": "1"}, "r.example/spark:1"),
        ({"repository": "r/x"}, {"digest": f"sha256:{'0' * 64}"}, f"r/x@sha256:{'0' * 64}"),
    ],
)
def test_jobs_have_the_image_of_the_operators_version(
    own: dict[str, Any], image: dict[str, Any], expected: str
) -> None:
    objects = template("holdfast-operator", {"image": own, "spark": {"image": image}})
    assert _parser().parse_args(operator(objects)["args"]).spark_image == expected
    assert _parser().parse_args(["run"]).spark_image == images.DEFAULT


def test_how_many_spark_jobs_run_at_once_gets_there() -> None:
    objects = template("holdfast-operator", {"spark": {"maxJobs": 20, "maxJobsPerNamespace": 3}})
    args = _parser().parse_args(operator(objects)["args"])
    assert (args.spark_max_jobs, args.spark_max_jobs_per_namespace) == (20, 3)


def test_what_templates_of_spark_jobs_may_have_gets_there() -> None:
    def limits(**spark: Any) -> TemplateLimits:
        return _limits(
            _parser().parse_args(operator(template("holdfast-operator", {"spark": spark}))["args"])
        )

    assert limits() == TemplateLimits() == _limits(_parser().parse_args(["run"]))
    assert limits(allowedMetadata=[]) == TemplateLimits(metadata=())
    given = limits(allowedPriorityClasses=["night", "day"], allowedMetadata=["example.com/*"])
    assert given == TemplateLimits(("night", "day"), ("example.com/*",))
    with pytest.raises(HelmError, match="/spark/allowedMetadata/0"):
        limits(allowedMetadata=["a b"])


def test_the_account_and_its_roles_can_be_somebody_elses() -> None:
    values = {"serviceAccount": {"create": False, "name": "ours"}, "rbac": {"create": False}}
    objects = template("holdfast-operator", values)
    assert not [each for each in objects if "Role" in each["kind"] or each["kind"] == "ServiceAccount"]
    assert {spec["serviceAccountName"] for spec in pod_specs(objects)} == {"ours"}


def test_a_digest_counts_instead_of_a_tag() -> None:
    image = {"repository": "r/x", "tag": "9", "digest": "sha256:" + "a" * 64}
    assert operator(template("holdfast-operator", {"image": image}))["image"] == "r/x@sha256:" + "a" * 64
    image = {"repository": "r/x", "tag": "9", "digest": ""}
    assert operator(template("holdfast-operator", {"image": image}))["image"] == "r/x:9"


def test_selectors_find_the_operators_pods_and_no_hooks(everything: list[dict[str, Any]]) -> None:
    labels = find(everything, "Deployment")["spec"]["template"]["metadata"]["labels"]
    hook = find(everything, "Job")["spec"]["template"]["metadata"]["labels"]
    for selector in (
        find(everything, "Deployment")["spec"]["selector"]["matchLabels"],
        find(everything, "Service")["spec"]["selector"],
        find(everything, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
        assert not selector.items() <= hook.items()
    monitor = find(everything, "ServiceMonitor")
    assert (
        monitor["spec"]["selector"]["matchLabels"].items()
        <= find(everything, "Service")["metadata"]["labels"].items()
    )
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_what_looks_for_operators_finds_the_deployment_and_its_pods(default: list[dict[str, Any]]) -> None:
    label, _, value = OPERATORS.partition("=")
    deployment = find(default, "Deployment")
    for metadata in (deployment["metadata"], deployment["spec"]["template"]["metadata"]):
        assert metadata["labels"][label] == value
    others = [each for each in default if each["kind"] not in {"Deployment", "Service"}]
    assert not [each for each in others if each["metadata"]["labels"].get(label) == value]


def test_the_network_is_closed_but_for_what_is_named(everything: list[dict[str, Any]]) -> None:
    policy = find(everything, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (ingress,) = policy["ingress"]
    assert ingress["ports"] == [{"port": "http"}]
    assert ingress["from"][0] == {"podSelector": {}}
    names, api, _, store = policy["egress"]
    assert [port["port"] for port in names["ports"]] == [53, 53]
    assert [port["port"] for port in api["ports"]] == [443, 6443]
    assert store == {"ports": [{"port": 443}]}
    closed = template("holdfast-operator", {"networkPolicy": {"egress": "closed"}})
    policy = find(closed, "NetworkPolicy")["spec"]
    assert (policy["policyTypes"], len(policy["egress"])) == (["Ingress", "Egress"], 3)


def test_out_of_the_box_others_reach_only_one_port_and_any_store_can_be_reached(
    default: list[dict[str, Any]],
) -> None:
    policy = find(default, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"ports": [{"port": "http"}]}]
    assert "egress" not in policy
    ports = operator(default)["ports"]
    assert ports == [{"name": "http", "containerPort": 8080}]
    open_ = template("holdfast-operator", {"networkPolicy": {"enabled": False}})
    assert not [each for each in open_ if each["kind"] == "NetworkPolicy"]


def expressions(objects: list[dict[str, Any]]) -> list[str]:
    rules = find(objects, "PrometheusRule")["spec"]["groups"][0]["rules"]
    board = json.loads(find(objects, "ConfigMap")["data"]["holdfast.json"])
    targets = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [*(rule["expr"] for rule in rules), *(expr.replace("$job", "x") for expr in targets)]


def metric_labels(registry: CollectorRegistry) -> dict[str, set[str]]:
    """The labels of each name that `/metrics` can have."""
    found: dict[str, set[str]] = {}
    for collector in set(registry._names_to_collectors.values()):
        labels = set(collector._labelnames)  # type: ignore[attr-defined]
        for suffix in ("", "_total", "_bucket", "_sum", "_count"):
            found[f"{collector._name}{suffix}"] = labels | ({"le"} if suffix == "_bucket" else set())  # type: ignore[attr-defined]
    return found


def test_alerts_and_the_dashboard_ask_for_metrics_that_there_are(everything: list[dict[str, Any]]) -> None:
    known = metric_labels(Metrics().registry)
    known["up"] = set()
    of_the_scrape = {"job", "namespace", "pod", "instance"}
    asked = expressions(everything)
    assert len(asked) > 20
    for expr in asked:
        assert promql_parser.parse(expr) is not None
        selectors = re.findall(r"(holdfast_[a-z_]+|\bup\b)(?:\{([^}]*)\})?", expr)
        assert selectors, expr
        for name, matchers in selectors:
            assert name in known, f"{name} in {expr}"
            labels = set(re.findall(r"([a-z_]+)(?:=~|!=|=)", matchers))
            assert labels <= known[name] | of_the_scrape, expr
        for group in re.findall(r"by \(([^)]*)\)", expr):
            every = set().union(*(known[name] for name, _ in selectors))
            assert {part.strip() for part in group.split(",")} <= every | of_the_scrape, expr


def alerts(objects: list[dict[str, Any]]) -> dict[str, str]:
    rules = find(objects, "PrometheusRule")["spec"]["groups"][0]["rules"]
    return {rule["alert"]: rule["expr"] for rule in rules}


def vectors(expr: str) -> list[promql_parser.VectorSelector]:
    """All that an expression asks for."""
    found: list[promql_parser.VectorSelector] = []

    def walk(node: Any) -> None:
        match node:
            case promql_parser.VectorSelector():
                found.append(node)
            case promql_parser.MatrixSelector():
                found.append(node.vector_selector)
            case promql_parser.BinaryExpr():
                walk(node.lhs)
                walk(node.rhs)
            case promql_parser.Call():
                for argument in node.args:
                    walk(argument)
            case promql_parser.AggregateExpr() | promql_parser.ParenExpr():
                walk(node.expr)
            case promql_parser.NumberLiteral():
                pass
            case _:
                raise AssertionError(f"{node!r} in {expr}")

    walk(promql_parser.parse(expr))
    return found


def matchers(vector: promql_parser.VectorSelector) -> dict[str, tuple[str, str]]:
    return {each.name: (str(each.op), each.value) for each in vector.matchers.matchers}


def test_an_alert_is_about_its_own_release(everything: list[dict[str, Any]]) -> None:
    mine = {"job": "holdfast-operator", "namespace": "holdfast"}
    for name, expr in alerts(everything).items():
        asked = [
            {label: value for label, (_, value) in matchers(vector).items() if label in mine}
            for vector in vectors(expr)
        ]
        assert mine in asked, name
        assert all(each == mine or each == {"job": mine["job"]} for each in asked), name


def test_what_an_alert_counts_is_counted_from_the_start(everything: list[dict[str, Any]]) -> None:
    metrics = Metrics()
    operator = Operator(Options(), Kube(ApiClient(Configuration())), metrics)
    operator._refresh_gauges()
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    compared = 0
    for name, expr in alerts(everything).items():
        # `increase()` doesn't see the first of a series that wasn't there; a share is of what there is.
        if not any(each in expr for each in ("increase(", "holdfast_objects", "holdfast_watches_down")):
            continue
        for vector in vectors(expr):
            asked = {k: v for k, (_, v) in matchers(vector).items() if k not in {"job", "namespace"}}
            there = [
                each for each in samples if each.name == vector.name and asked.items() <= each.labels.items()
            ]
            assert there, f"{name}: nothing is {vector.name}{asked}"
            assert {each.value for each in there} == {0.0}
            compared += 1
    assert compared >= 6


def test_a_queue_that_is_stuck_is_told_of_before_the_pod_is_started_anew_for_good(
    everything: list[dict[str, Any]],
) -> None:
    rules = find(everything, "PrometheusRule")["spec"]["groups"][0]["rules"]
    (rule,) = (each for each in rules if each["alert"] == "HoldfastQueueStuck")
    found = re.fullmatch(r"max by \(namespace, pod\) \(avg_over_time\(.*\[5m\]\)\) > (\d+)", rule["expr"])
    assert found is not None
    assert rule["for"] == "0m"
    probe = operator(everything)["livenessProbe"]
    restarts = STUCK_WAIT + probe["periodSeconds"] * probe.get("failureThreshold", 3)

    def fires(waits: Callable[[int], float]) -> bool:
        """Whether it does within an hour in which the longest wait is `waits(second)`."""
        told = [waits(second) for second in range(0, 3600, 30)]
        averages = (sum(told[max(0, n - 10) : n]) / min(n, 10) for n in range(1, len(told) + 1))
        return max(averages) > float(found[1])

    # Nobody takes anything, and the pod is started anew again and again.
    assert fires(lambda second: second % restarts)
    # One burst that is worked off just before the pod would be started anew.
    assert not fires(lambda second: max(0.0, 110.0 - abs(1800 - second)))


def test_every_alert_links_to_its_runbook(everything: list[dict[str, Any]]) -> None:
    page = (ROOT / "docs" / "how-to" / "alerts.md").read_text()
    sections = {line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")}
    rules = find(everything, "PrometheusRule")["spec"]["groups"][0]["rules"]
    assert {rule["alert"] for rule in rules} == sections
    for rule in rules:
        assert rule["annotations"]["runbook_url"].endswith(f"/how-to/alerts/#{rule['alert'].lower()}")
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_every_value_is_in_the_schema_and_every_one_there_has_a_default() -> None:
    def same(given: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        assert set(given) == set(schema["properties"]) - {"global"}, path
        assert schema["additionalProperties"] is False, path
        for name, inner in schema["properties"].items():
            if "properties" in inner:
                same(given[name], inner, f"{path}.{name}")

    for chart in ("holdfast-crds", "holdfast-operator"):
        schema = json.loads((CHARTS / chart / "values.schema.json").read_text())
        same(yaml.safe_load((CHARTS / chart / "values.yaml").read_text()), schema, chart)


@pytest.mark.parametrize("chart", ["holdfast-crds", "holdfast-operator"])
def test_no_reference_in_a_schema_has_neighbours_which_draft_7_ignores(chart: str) -> None:
    def crowded(schema: Any) -> list[Any]:
        if isinstance(schema, list):
            return [found for each in schema for found in crowded(each)]
        if not isinstance(schema, dict):
            return []
        here = [schema] if "$ref" in schema and len(schema) > 1 else []
        return here + crowded(list(schema.values()))

    assert crowded(json.loads((CHARTS / chart / "values.schema.json").read_text())) == []


def test_no_two_objects_have_one_name(
    everything: list[dict[str, Any]], default: list[dict[str, Any]]
) -> None:
    for objects in (everything, default):
        names = [
            (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects
        ]
        assert len(names) == len(set(names))


def test_the_chart_of_the_crds_has_what_the_models_say() -> None:
    objects = template("holdfast-crds", {"annotations": {"a": "b"}, "labels": {"c": "d"}})
    wanted = [custom_resource_definition(model) for model in RESOURCES]
    for crd in wanted:
        found = find(objects, "CustomResourceDefinition", crd["metadata"]["name"])
        assert found["spec"] == crd["spec"]
        assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep", "a": "b"}
        assert crd["metadata"]["labels"].items() <= found["metadata"]["labels"].items()
        assert found["metadata"]["labels"]["c"] == "d"
    for name in ROLES:
        role, expected = find(objects, "ClusterRole", name), cluster_role(name)
        assert role["rules"] == expected["rules"]
        assert expected["metadata"]["labels"].items() - {("app.kubernetes.io/name", "holdfast")} <= (
            role["metadata"]["labels"].items()
        )
    assert len(objects) == len(wanted) + len(ROLES)
    loose = template("holdfast-crds", {"keep": False, "aggregatedRoles": False})
    kinds = {each["kind"] for each in loose if each["metadata"]["name"] != "holdfast-data-reader"}
    assert kinds == {"CustomResourceDefinition"}
    # It is part of no role of the cluster, so that nobody has it by surprise.
    assert set(find(loose, "ClusterRole")["metadata"]["labels"]) & {"app.kubernetes.io/name"}
    assert not [each for each in find(loose, "ClusterRole")["metadata"]["labels"] if "aggregate" in each]
    assert all("annotations" not in each["metadata"] for each in loose)


def test_the_notes_of_the_crds_name_the_command_that_the_readme_has_next() -> None:
    command = "helm upgrade --install holdfast-operator charts/holdfast-operator --namespace holdfast"
    notes = (CHARTS / "holdfast-crds" / "templates" / "NOTES.txt").read_text()
    assert f"Next: {command} --create-namespace\n" in notes
    assert f"\n{command} --create-namespace" in (CHARTS / "holdfast-operator" / "README.md").read_text()


def test_what_the_readme_says_of_the_role_is_the_role(default: list[dict[str, Any]]) -> None:
    page = (CHARTS / "holdfast-operator" / "README.md").read_text().split("## What the operator may do")[1]
    told: dict[str, set[str]] = {}
    for resources, verbs in re.findall(
        r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", page.split("\n## ")[0], re.MULTILINE
    ):
        if resources != "resource" and not resources.startswith("-"):
            for resource in re.sub(r"\(.*?\)|,? in its own namespace", "", resources).split(","):
                told[resource.strip()] = set(re.findall(r"create|get|list|watch|patch|delete", verbs))
    told["status"] = told.pop("their `status`")
    found: dict[str, set[str]] = {}
    for each in default:
        for rule in each.get("rules", ()):
            for resource in rule["resources"]:
                name = "status" if resource.endswith("/status") else resource
                found.setdefault(name, set()).update(rule["verbs"])
    assert told == found


CONSOLE: dict[str, Any] = {"console": {"enabled": True}}


def of_console(values: dict[str, Any] | None = None) -> dict[str, list[dict[str, Any]]]:
    """The objects of the console by kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in template("holdfast-operator", {**CONSOLE, **(values or {})}):
        if each["metadata"]["labels"].get("app.kubernetes.io/component") == "console":
            found.setdefault(each["kind"], []).append(each)
    return found


def test_the_console_is_apart_and_only_if_it_is_asked_for(default: list[dict[str, Any]]) -> None:
    assert "console" not in yaml.safe_dump_all(default)
    found = of_console()
    assert sorted(found) == [
        *("ClusterRole", "ClusterRoleBinding", "Deployment", "NetworkPolicy", "Service", "ServiceAccount")
    ]
    operator_selector = find(default, "Service")["spec"]["selector"]
    labels = found["Deployment"][0]["spec"]["template"]["metadata"]["labels"]
    assert not operator_selector.items() <= labels.items()
    assert found["Service"][0]["spec"]["selector"].items() <= labels.items()
    pod = found["Deployment"][0]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "holdfast-operator-console"
    (container,) = pod["containers"]
    assert {each["name"] for each in container["ports"]} == {"console", "health"}
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {"livenessProbe", "readinessProbe", "startupProbe", "resources"} <= container.keys()
    assert [each["ports"] for each in found["NetworkPolicy"][0]["spec"]["ingress"]] == [
        [{"port": "console"}],
        [{"port": "health"}],
    ]


def test_the_console_gets_no_more_rights_than_it_uses() -> None:
    read = ["get", "list", "watch"]
    own = {
        "catalogs": read,
        "catalogmigrations": read,
        "storagecollections": read,
        "collectionsnapshots": read,
        "events": ["list", "watch"],
        "secrets": ["get"],
    }
    reviews = {"tokenreviews": ["create"], "subjectaccessreviews": ["create"]}

    def granted(roles: list[dict[str, Any]]) -> dict[str, list[str]]:
        (role,) = roles
        return {each: rule["verbs"] for rule in role["rules"] for each in rule["resources"]}

    assert granted(of_console()["ClusterRole"]) == own | reviews
    found = of_console({"watch": {"namespaces": ["a"]}})
    assert granted(found["ClusterRole"]) == reviews
    assert granted(found["Role"]) == own
    assert found["Role"][0]["metadata"]["namespace"] == "a"


def deployment_namespace(values: dict[str, Any]) -> str:
    """The namespace of the release."""
    (binding,) = of_console(values)["ClusterRoleBinding"]
    return str(binding["subjects"][0]["namespace"])


def test_the_command_line_of_the_console_is_what_the_values_say() -> None:
    values = {
        "console": {"enabled": True, "hosts": ["holdfast.example.com"]},
        "watch": {"namespaces": ["a", "b"]},
        "storage": {"allowedLocations": ["s3://bucket/team"]},
    }
    (deployment,) = of_console(values)["Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    args = _parser().parse_args(pod["containers"][0]["args"])
    options = options_of(args)
    assert (options.namespaces, options.allowed_locations) == (("a", "b"), ("s3://bucket/team",))
    own = {"holdfast-operator-console", f"holdfast-operator-console.{deployment_namespace(values)}.svc"}
    assert own | {"holdfast.example.com"} <= options.hosts
    assert str(options.data_dir) == "/var/lib/holdfast"
    assert pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    alone = {"storage": {"embedded": {"accessMode": "ReadWriteOncePod"}}}
    (deployment,) = of_console(alone)["Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    assert options_of(_parser().parse_args(pod["containers"][0]["args"])).data_dir is None
    assert "affinity" not in pod


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"hosts": ["https://x"]}, "/console/hosts/0"),
        ({"viewersFrom": [{"pods": {}}]}, "/console/viewersFrom/0"),
        ({"serviceAccount": {"name": "holdfast-operator"}}, "is the ServiceAccount of the operator"),
        ({"credentialsSecret": "stores"}, "console.credentialsSecret gives the console credentials"),
    ],
)
def test_a_console_that_would_be_unsafe_is_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(HelmError, match=re.escape(told)):
        template("holdfast-operator", {"console": {"enabled": True, **values}})


def test_the_dashboard_links_to_the_console_if_its_address_is_known() -> None:
    def links(**dashboard: Any) -> list[dict[str, Any]]:
        objects = template("holdfast-operator", {"dashboard": {"enabled": True, **dashboard}})
        text = find(objects, "ConfigMap")["data"]["holdfast.json"]
        return list(json.loads(text)["links"])

    assert links() == []
    (link,) = links(consoleUrl="https://holdfast.example.com")
    assert (link["title"], link["url"]) == ("Console", "https://holdfast.example.com")
    with pytest.raises(HelmError, match="/dashboard/consoleUrl"):
        links(consoleUrl="javascript:alert(1)")
