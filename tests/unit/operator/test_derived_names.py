"""Names and labels that the operator derives from names of resources: valid in Kubernetes, and different."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import pytest
from kubernetes.client import ApiClient

from holdfast_operator.api.collection import SnapshotSchedule
from holdfast_operator.api.cron import ScheduleStatus
from holdfast_operator.api.names import Kind
from holdfast_operator.api.spark import SparkTemplate
from holdfast_operator.catalogs.connection import config_map_name
from holdfast_operator.collections.snapshot_schedule import (
    CreateSnapshot,
    SnapshotScheduleView,
    plan,
    schedule_label,
)
from holdfast_operator.engine.events import event_name
from holdfast_operator.engine.kube import Kube, ObjectKey
from holdfast_operator.kubectl.collections import snapshot_body
from holdfast_operator.sparkapps.adapter import Launch
from holdfast_operator.sparkapps.apache import ApacheAdapter
from holdfast_operator.sparkapps.job import JobAdapter
from holdfast_operator.sparkapps.kubeflow import KubeflowAdapter
from holdfast_operator.sparkapps.objects import labels_of

LONGEST: Final = 253
NOW: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_PART: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
OBJECT: Final = re.compile(rf"(?=.{{1,253}}$){_PART}(\.{_PART})*")
"""A DNS-1123 subdomain, as the names of objects are."""
SERVICE: Final = re.compile(r"(?=.{1,63}$)[a-z]([-a-z0-9]*[a-z0-9])?")
"""A DNS-1035 label, as the webhook of the Kubeflow operator and the names of Services require."""
LABEL: Final = re.compile(r"(?=.{0,63}$)([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
UI: Final = "-ui-svc"
"""The longest suffix that the Kubeflow operator adds to the name of an application, for a Service."""


def names() -> Iterator[str]:
    """Short, with a digit first, and long, with a dot or a dash at each place where one may be cut."""
    yield from ("9", "a", "1db", "2024.flights", "1-" * 126 + "1", "1" + "0" * 252)
    for length in (*range(60, 66), *range(185, LONGEST + 1)):
        yield "1" + "b" * (length - 1)
    for at in (*range(1, 30), *range(60, 66), *range(180, LONGEST - 2)):
        for mark in (".", "-"):
            yield f"{'1' * at}{mark}{'c' * (LONGEST - at - len(mark))}"


NAMES: Final = sorted(set(names()))


def test_the_names_are_names() -> None:
    assert all(OBJECT.fullmatch(name) for name in NAMES)
    assert not any(OBJECT.fullmatch(name) for name in ("a.-b", "a-.b", "a..b", "-a", "a.", "a" * 254))


@pytest.mark.parametrize("each", [KubeflowAdapter, ApacheAdapter, JobAdapter], ids=lambda each: each.name)
def test_applications_and_jobs(each: type[KubeflowAdapter | ApacheAdapter | JobAdapter]) -> None:
    adapter, found = each(Kube(ApiClient())), set()
    for number, name in enumerate(NAMES[::2]):
        for kind in (Kind.STORAGE_COLLECTION, Kind.COLLECTION_SNAPSHOT):
            uid = f"7a0c2f3e-0000-5000-8000-{2 * number + (kind is Kind.COLLECTION_SNAPSHOT):012}"
            owner = ObjectKey(kind, "ns", name)
            launch = Launch(owner, uid, "snapshot", uid, 9999, ("{}",), SparkTemplate())
            for attempt in (launch, replace(launch, attempt=10000)):
                metadata = adapter.body(attempt)["metadata"]
                assert SERVICE.fullmatch(metadata["name"] + UI)
                found.add(metadata["name"])
            assert all(LABEL.fullmatch(value) for value in labels_of(launch).values())
            assert metadata["ownerReferences"][0]["name"] == name
    # A name says which attempt it is, although the names of most owners are cut to the same text.
    assert len(found) == 4 * len(NAMES[::2])


def test_objects_beside_a_resource() -> None:
    spec = SnapshotSchedule.model_validate({"schedule": "0 0 * * *", "destination": "file:///out"})
    shown = ScheduleStatus(next_schedule_time=NOW.replace(hour=0, minute=0, second=0))
    derived: dict[str, set[str]] = {"config map": set(), "snapshot": set(), "label": set()}
    for name in NAMES:
        step = plan(SnapshotScheduleView(name, spec, shown, (), NOW))
        assert isinstance(step, CreateSnapshot)
        assert LABEL.fullmatch(schedule_label(name))
        derived["label"].add(schedule_label(name))
        derived["snapshot"].add(step.name)
        derived["config map"].add(config_map_name(name))
        by_hand = snapshot_body(
            {"metadata": {"name": name}, "spec": {}},
            None,
            "file:///out",
            None,
            NOW,
            delete_files=False,
        )
        event = event_name(ObjectKey(Kind.STORAGE_COLLECTION, "ns", name), NOW)
        for each in (step.name, config_map_name(name), by_hand["metadata"]["name"], event):
            assert OBJECT.fullmatch(each), (name, each)
    assert {what: len(found) for what, found in derived.items()} == dict.fromkeys(derived, len(NAMES))
