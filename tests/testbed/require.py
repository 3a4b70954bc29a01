"""Shows which tiers the machine has, and which tiers a run requires.

`HOLDFAST_REQUIRE=kube,postgres,s3,spark,helm,kafka,browser,node` names required tiers: their tests fail if
the tier is missing. Tests of other missing tiers are skipped.
"""

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from testbed import build, chromium, kafka, node, postgres, spark
from testbed.errors import Unavailable

VARIABLE = "HOLDFAST_REQUIRE"


class Tier(StrEnum):
    """What a test can ask for; the value is its pytest marker."""

    KUBE = "kube"
    POSTGRES = "postgres"
    SPARK = "spark"
    S3 = "s3"
    HELM = "helm"
    KAFKA = "kafka"
    BROWSER = "browser"
    NODE = "node"

    @property
    def description(self) -> str:
        match self:
            case Tier.KUBE:
                return "needs a Kubernetes API server: $KUBECONFIG, or one that the test bed boots"
            case Tier.POSTGRES:
                return "needs a Postgres server, which the test bed starts"
            case Tier.SPARK:
                return "needs Java and pyspark, to run Spark on this machine"
            case Tier.S3:
                return "needs MinIO, which the test bed builds and starts"
            case Tier.HELM:
                return "needs Helm, which the test bed builds"
            case Tier.KAFKA:
                return "needs Java and Maven, to run a Kafka broker on this machine"
            case Tier.BROWSER:
                return "needs Chromium and the package playwright, to look at pages"
            case Tier.NODE:
                return "needs a Kubernetes node that runs pods, which the test bed starts as root"
            case _:
                assert_never(self)


def required(env: Mapping[str, str] | None = None) -> frozenset[Tier]:
    """The tiers named in `$HOLDFAST_REQUIRE`; raises `ValueError` for an unknown one."""
    named = (os.environ if env is None else env).get(VARIABLE, "")
    tiers = set()
    for name in filter(None, (part.strip() for part in named.split(","))):
        try:
            tiers.add(Tier(name))
        except ValueError:
            known = ", ".join(Tier)
            raise ValueError(f"{VARIABLE}={named}: there is no tier {name!r}, only {known}") from None
    return frozenset(tiers)


def missing(tier: Tier, env: Mapping[str, str] | None = None) -> str | None:
    """What `tier` lacks here and how to get it; None if it can be used at once."""
    env = os.environ if env is None else env
    match tier:
        case Tier.KUBE:
            return _missing_kube(env)
        case Tier.POSTGRES:
            return postgres.missing()
        case Tier.SPARK:
            return spark.missing(env)
        case Tier.S3:
            return None if build.MINIO.path.exists() else _not_built(build.MINIO)
        case Tier.HELM:
            unbuilt = build.unbuilt((build.HELM, build.CRANE))
            return _not_built(*unbuilt) if unbuilt else None
        case Tier.KAFKA:
            return kafka.missing(env)
        case Tier.BROWSER:
            return chromium.missing(env)
        case Tier.NODE:
            unbuilt = build.unbuilt((*build.needed(), *build.NODE))
            return node.missing() or (_not_built(*unbuilt) if unbuilt else None)
        case _:
            assert_never(tier)


def provide(tier: Tier) -> None:
    """Make `tier` usable, which can take minutes once per machine; raises `Unavailable` where that fails."""
    if tier is Tier.KUBE and not os.environ.get("KUBECONFIG"):
        build.ensure()
    if tier is Tier.S3:
        build.ensure((build.MINIO,))
    if tier is Tier.HELM:
        build.ensure((build.HELM, build.CRANE))
    if tier is Tier.KAFKA:
        kafka.provide()
    if tier is Tier.BROWSER:
        chromium.provide()
    if tier is Tier.POSTGRES:
        postgres.provide()
    if tier is Tier.NODE:
        node.provide()
    lack = missing(tier)
    if lack:
        raise Unavailable(lack)


def _missing_kube(env: Mapping[str, str]) -> str | None:
    named = env.get("KUBECONFIG")
    if named:
        return None if Path(named).is_file() else f"KUBECONFIG={named} is not a readable file"
    unbuilt = build.unbuilt()
    return _not_built(*unbuilt) if unbuilt else None


def _not_built(*tools: build.Tool) -> str:
    names = ", ".join(tool.name for tool in tools)
    return f"{names} not built yet: run PYTHONPATH=tests python -m testbed build (minutes, once)"
