"""The kinds of the Prometheus operator, by the definitions of its own release: nobody serves them here.

They are enough for the API server to say whether an object is one that the operator would understand.
"""

from pathlib import Path
from typing import Final

from testbed.kube import ControlPlane

_FOLDER: Final = Path(__file__).parent
_KINDS: Final = ("servicemonitors", "prometheusrules")


def install_crds(cluster: ControlPlane) -> None:
    """Define ServiceMonitor and PrometheusRule, and wait until objects of them can be made."""
    for kind in _KINDS:
        cluster.kubectl("apply", "--server-side", "-f", str(_FOLDER / f"{kind}.yaml"))
    cluster.wait_established(*(f"crd/{kind}.monitoring.coreos.com" for kind in _KINDS))
