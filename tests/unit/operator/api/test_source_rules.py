"""Which changes of a source the CRD refuses. Its own rules are evaluated, without an API server."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cel_expr_python import cel

CRD = Path(__file__).parents[4] / "crds" / "holdfast.dev_storagecollections.yaml"
FORMAT = {"format": {"json": {}}}
SOURCES: dict[str, dict[str, Any]] = {
    "kafka": {"bootstrapServers": "kafka:9092", "topic": "orders", "onReset": "Stall"},
    "files": {"path": "/data/orders", "pattern": "*.jsonl"},
    "postgres": {"url": "postgresql://db/shop", "table": "public.orders", "publication": "holdfast"},
    "collection": {"name": "raw"},
    "generator": {"rows": 10, "since": 0, "keys": 3},
}


def refused(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """The fields with a rule that refuses a change of a resource."""
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    return sorted(set(transitions(version["schema"]["openAPIV3Schema"], now, before)))


def transitions(schema: dict[str, Any], now: Any, before: Any, path: str = "") -> Iterator[str]:
    for each in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" in each["rule"]:
            env = cel.NewEnv(variables={"self": cel.Type.DYN, "oldSelf": cel.Type.DYN})
            found = env.compile(each["rule"]).eval(data={"self": now, "oldSelf": before})
            if found.plain_value() is not True:
                yield path + each.get("fieldPath", "")
    for name, field in schema.get("properties", {}).items():
        if isinstance(now, dict) and name in now and name in before:
            yield from transitions(field, now[name], before[name], f"{path}.{name}")


def made(source: dict[str, Any] | None) -> dict[str, Any]:
    """A resource that has no status, as after it was created or brought back by a tool."""
    spec = {"catalogRef": {"name": "demo"}, "database": "d", "schema": "s", "columns": []}
    return {"spec": spec if source is None else spec | {"source": source}}


def of(kind: str, **changed: Any) -> dict[str, Any]:
    return {kind: SOURCES[kind] | changed, **({} if kind == "postgres" else FORMAT)}


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("kafka", "topic", "others"),
        ("files", "path", "/data/others"),
        ("postgres", "table", "public.others"),
        ("postgres", "publication", "other"),
        ("collection", "name", "other"),
        ("generator", "since", 5),
        ("generator", "keys", 0),
    ],
)
def test_what_says_which_source_it_is_never_changes(kind: str, field: str, value: object) -> None:
    changed = made(of(kind, **{field: value}))
    assert refused(changed, made(of(kind))) == [f".spec.source.{kind}.{field}"]


def test_the_kind_of_a_source_never_changes() -> None:
    assert refused(made(of("files")), made(of("kafka"))) == [".spec.source"]
    assert refused(made(None), made(of("kafka"))) == [".spec.source"]
    assert refused(made(of("kafka")), made(None)) == [".spec.source"]


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("kafka", {"bootstrapServers": "other:9092", "onReset": "NewEpoch", "group": "g"}),
        ("files", {"pattern": "*", "onChanged": "ignore"}),
        ("postgres", {"url": "postgresql://other/shop", "slot": "s", "onReset": "NewEpoch"}),
        ("collection", {"url": "file:///other"}),
        ("generator", {"rows": 20, "rowsPerSecond": 1}),
    ],
)
def test_what_says_how_a_source_is_read_may_change(kind: str, changed: dict[str, Any]) -> None:
    assert refused(made(of(kind, **changed)), made(of(kind))) == []


@pytest.mark.parametrize(
    "changed", [{"format": {"raw": {}}}, {"envelope": "Upsert"}, {"include": {"key": "k"}}]
)
def test_how_a_message_becomes_a_row_may_change(changed: dict[str, Any]) -> None:
    before = made(of("kafka"))
    now = copy.deepcopy(before)
    now["spec"]["source"] |= changed
    assert refused(now, before) == []
    for each in (now, before):
        each["status"] = {"collectionId": "c1"}
    assert refused(now, before) == []
