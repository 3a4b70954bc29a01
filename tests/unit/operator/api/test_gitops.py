"""When GitOps tools report a resource as healthy, from the status that the operator writes."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast_operator.api.names import API_VERSION, Kind, Reason
from holdfast_operator.engine.health import Health, Phase, health_conditions
from holdfast_operator.engine.status_writer import next_status
from testbed.gitops import argo, flux, kstatus

CRDS = Path(__file__).parents[4] / "crds"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
REASONS = {
    Phase.READY: Reason.AVAILABLE,
    Phase.RECONCILING: Reason.OPENING,
    Phase.STALLED: Reason.SECRET_NOT_FOUND,
    Phase.SUSPENDED: Reason.SUSPENDED,
}


def body(kind: Kind, phase: Phase, *, seen: int = 3, **metadata: Any) -> dict[str, Any]:
    health = Health(phase, REASONS[phase], f"it is {phase.value}")
    return {
        "apiVersion": API_VERSION,
        "kind": kind.value,
        "metadata": {"name": "demo", "generation": 3, **metadata},
        "spec": {},
        "status": next_status({}, {}, health_conditions(health), seen, NOW),
    }


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize(
    ("phase", "by_argo", "by_flux", "by_kstatus"),
    [
        (Phase.READY, "Healthy", "Current", "Current"),
        (Phase.RECONCILING, "Progressing", "InProgress", "InProgress"),
        (Phase.STALLED, "Degraded", "Failed", "Failed"),
        # Where somebody said that nothing is to be done, nobody waits for it but plain kstatus.
        (Phase.SUSPENDED, "Suspended", "Current", "InProgress"),
    ],
)
def test_every_phase_has_its_health(
    kind: Kind, phase: Phase, by_argo: str, by_flux: str, by_kstatus: str
) -> None:
    found = body(kind, phase)
    assert argo(found) == (by_argo, f"it is {phase.value}")
    assert (flux(found), kstatus(found)) == (by_flux, by_kstatus)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("phase", list(Phase))
def test_what_was_said_of_an_older_generation_does_not_count(kind: Kind, phase: Phase) -> None:
    found = body(kind, phase, seen=2)
    assert argo(found)[0] == "Progressing"
    assert (flux(found), kstatus(found)) == ("InProgress", "InProgress")


@pytest.mark.parametrize("kind", list(Kind))
def test_a_new_resource_is_waited_for(kind: Kind) -> None:
    found = body(kind, Phase.READY)
    # As the CRD's default leaves it.
    found["status"] = {"observedGeneration": -1}
    assert argo(found)[0] == "Progressing"
    assert (flux(found), kstatus(found)) == ("InProgress", "InProgress")


def test_a_deletion_is_under_way_until_it_stalls() -> None:
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert argo(body(Kind.CATALOG, Phase.READY, seen=2, **deleted))[0] == "Progressing"
    assert argo(body(Kind.CATALOG, Phase.READY, **deleted))[0] == "Progressing"
    stalled = body(Kind.CATALOG, Phase.STALLED, **deleted)
    assert argo(stalled) == ("Degraded", "it is stalled")


def test_every_kind_has_its_check() -> None:
    script = yaml.safe_load((CRDS / "argocd" / "argocd-cm.yaml").read_text())["data"]
    rules = yaml.safe_load((CRDS / "flux" / "health-check-exprs.yaml").read_text())["healthCheckExprs"]
    assert {name.rsplit("_", 1)[1] for name in script} == set(Kind)
    assert len(set(script.values())) == 1
    assert {(each["apiVersion"], each["kind"]) for each in rules} == {(API_VERSION, kind) for kind in Kind}
