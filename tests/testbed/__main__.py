"""`python -m testbed`: the test bed for people.

- `up` starts a control plane and keeps it until Ctrl-C.
- `build` builds the binaries of all tiers.
- `doctor` shows what the machine has and what it lacks.
- `can` shows whether the machine can have a tier. It exits with 3 if it cannot.
- `spark-operator` runs the SparkApplications of the cluster that `$KUBECONFIG` names.
"""

import argparse
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from testbed import build, chromium, go, kafka, node, require
from testbed.cache import cache_folder
from testbed.errors import ControlPlaneError, KubectlError, Unavailable
from testbed.kube import ControlPlane
from testbed.require import Tier

_CAN_NOT = 3
_IMPOSSIBLE: dict[Tier, Callable[[], str | None]] = {
    Tier.KAFKA: kafka.impossible,
    Tier.BROWSER: chromium.impossible,
    Tier.NODE: node.impossible,
}
"""The tiers that not every machine can have. Each function returns the reason, or None."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command. If something is missing or fails, print one line and return exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m testbed", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="boot a control plane and keep it until Ctrl-C")
    up.add_argument("--folder", type=Path, help="where its files and logs go (default: a temporary folder)")
    up.add_argument(
        "--spark-operator", action="store_true", help="with the CRD and the stand-in of the Spark operator"
    )
    commands.add_parser("build", help="build the binaries of all tiers into the cache folder")
    commands.add_parser("doctor", help="say what is here and what is missing")
    can = commands.add_parser("can", help="say why this machine can't have a tier; exit code 3 then")
    can.add_argument("tier", choices=[tier.value for tier in _IMPOSSIBLE])
    spark_operator = commands.add_parser(
        "spark-operator", help="run the drivers of SparkApplications on this machine until Ctrl-C"
    )
    spark_operator.add_argument("--namespace", help="only of this namespace (default: all)")
    spark_operator.add_argument("--log-dir", type=Path, help="where logs of drivers go (default: temporary)")
    options = parser.parse_args(arguments)
    former = signal.signal(signal.SIGTERM, _interrupt)
    try:
        match options.command:
            case "up":
                return _up(options.folder, with_spark=options.spark_operator)
            case "build":
                build.ensure((*build.needed(), build.MINIO, build.HELM, build.CRANE))
                for tier in (Tier.KAFKA, Tier.BROWSER):
                    lack = _IMPOSSIBLE[tier]()
                    if lack:
                        print(f"testbed: no {tier}: {lack}", file=sys.stderr)
                    else:
                        require.provide(tier)
                return 0
            case "can":
                why = _IMPOSSIBLE[Tier(options.tier)]()
                print(why or "yes")
                return _CAN_NOT if why else 0
            case "doctor":
                return _doctor()
            case _:
                return _spark_operator(options.namespace, options.log_dir)
    except (Unavailable, ControlPlaneError, KubectlError) as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGTERM, former)


def _up(folder: Path | None, *, with_spark: bool) -> int:
    with ControlPlane.start(folder=folder) as cluster:
        if with_spark:
            from testbed.sparkoperator import SparkOperatorStandIn, install_crd

            logging.basicConfig(level=logging.INFO, format="%(message)s")
            install_crd(cluster)
            with SparkOperatorStandIn(cluster.kubeconfig):
                _serve(cluster)
        else:
            _serve(cluster)
    return 0


def _serve(cluster: ControlPlane) -> None:
    print(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}", flush=True)
    print(f"{cluster.server} is up, logs in {cluster.folder}; Ctrl-C stops it", file=sys.stderr, flush=True)
    _wait_for_interrupt()


def _spark_operator(namespace: str | None, log_dir: Path | None) -> int:
    from testbed.sparkoperator import SparkOperatorStandIn

    kubeconfig = os.environ.get("KUBECONFIG")
    if not kubeconfig:
        raise Unavailable("KUBECONFIG is not set: name the cluster to serve")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with SparkOperatorStandIn(Path(kubeconfig), namespace=namespace, log_dir=log_dir):
        _wait_for_interrupt()
    return 0


def _wait_for_interrupt() -> None:
    try:
        while True:
            signal.pause()
    except KeyboardInterrupt:
        print("stopping ...", file=sys.stderr, flush=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _doctor() -> int:
    """One line per thing; 0 if every tier is here."""
    toolchain = go.find()
    built = not build.unbuilt() and build.MINIO.path.exists() and build.HELM.path.exists()
    kubectl = shutil.which("kubectl")
    lines = [
        (None, "cache", str(cache_folder())),
        (toolchain is not None or built, "go", str(toolchain or "not here; build fetches it as a package")),
        (kubectl is not None, "kubectl", kubectl or "not on PATH; build makes one"),
    ]
    missing = {tier: require.missing(tier) for tier in Tier}
    lines += [(lack is None, f"tier {tier}", lack or "ready") for tier, lack in missing.items()]
    for good, what, told in lines:
        sign = {None: " ", True: "+", False: "-"}[good]
        print(f"{sign} {what}: {told}")
    return 1 if any(missing.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
