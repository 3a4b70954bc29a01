"""The Kubeflow Spark operator on a node, from its own chart, as a pod of our Spark image.

The official image is a Spark image with the operator's binary. Here the test bed builds the binary, and the
node mounts it into the pod. The webhook is off.
"""

import json
from typing import Any, Final

from testbed import build, helm
from testbed.images import SPARK
from testbed.node import NodeCluster

Json = dict[str, Any]

NAMESPACE: Final = "spark-operator"
ACCOUNT: Final = "spark-operator-controller"
"""Its ServiceAccount, which is its Deployment's name too."""
_CHART: Final = build.SPARK_OPERATOR.path.with_name("spark-operator-chart")
_BINARY: Final = "/opt/spark-operator"
_PATIENCE: Final = "180s"


def install(node: NodeCluster) -> None:
    """Have it serve all namespaces, and wait until it does."""
    registry, _, rest = SPARK.partition("/")
    repository, _, tag = rest.partition(":")
    shown = {"name": "binary", "hostPath": {"path": str(build.SPARK_OPERATOR.path), "type": "File"}}
    values = {
        "image": {"registry": registry, "repository": repository, "tag": tag, "pullPolicy": "Never"},
        "webhook": {"enable": False},
        "controller": {
            "replicas": 0,
            "leaderElection": {"enable": False},
            "uiService": {"enable": False},
            "env": [{"name": "SPARK_HOME", "value": "/opt/spark"}],
            "volumes": [{"name": "tmp", "emptyDir": {}}, shown],
            "volumeMounts": [
                {"name": "tmp", "mountPath": "/tmp"},
                {"name": "binary", "mountPath": _BINARY, "readOnly": True},
            ],
        },
        "spark": {
            "jobNamespaces": [""],
            "serviceAccount": {"create": False},
            "rbac": {"create": False},
        },
    }
    helm.run(
        *("install", "spark-operator", _CHART, "--namespace", NAMESPACE, "--create-namespace"),
        values=values,
        cluster=node.plane,
    )
    # What the image of the chart begins with, its chart doesn't say.
    container = {"name": ACCOUNT, "command": ["tini", "-s", "--", _BINARY]}
    started: Json = {"spec": {"replicas": 1, "template": {"spec": {"containers": [container]}}}}
    deployment = f"deployment/{ACCOUNT}"
    node.plane.kubectl("-n", NAMESPACE, "patch", deployment, f"--patch={json.dumps(started)}")
    node.plane.kubectl("-n", NAMESPACE, "rollout", "status", deployment, f"--timeout={_PATIENCE}")


def remove(node: NodeCluster) -> None:
    """Remove it, but for its definitions of resources, as Helm does."""
    helm.run(
        "uninstall", "spark-operator", "--namespace", NAMESPACE, "--ignore-not-found", cluster=node.plane
    )
