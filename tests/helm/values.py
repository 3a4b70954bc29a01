"""Values that the tests of charts share."""

from typing import Any, Final

HA: Final[dict[str, Any]] = {
    "replicas": 2,
    "storage": {"embedded": {"enabled": False}},
    "leaderElection": {"enabled": True},
}
ALL_ON: Final[dict[str, Any]] = {
    **HA,
    "storage": {
        "embedded": {"enabled": False},
        "allowedLocations": ["s3://bucket/team", "postgresql://db/team"],
    },
    "watch": {"namespaces": ["a", "b"]},
    "spark": {"serviceAccount": {"create": True}},
    "networkPolicy": {
        "enabled": True,
        "metricsFrom": [{"podSelector": {}}],
        "stores": [{"ports": [{"port": 443}]}],
    },
    "podDisruptionBudget": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True},
    "dashboard": {"enabled": True},
    "credentialsSecret": "stores",
    "imagePullSecrets": [{"name": "pull"}],
    "extraEnv": [{"name": "AWS_REGION", "value": "eu-central-1"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
    "extraArgs": ["--steady-interval=30"],
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"operator": "Exists"}],
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    ],
    "priorityClassName": "system-cluster-critical",
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "data"},
    "service": {"annotations": {"c": "d"}},
    "serviceAccount": {"annotations": {"role": "writer"}},
}
"""Everything that a chart can have, in namespaces."""
