"""Checks the affinity of pods, which the CRDs don't describe because its schema is as large as all the rest.

The fields are those of a pod's spec. `namespaces` and `namespaceSelector` are missing on purpose: pods that
a resource asks for depend only on pods of its own namespace.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

_MOST_BYTES: Final = 16 * 1024
"""As JSON. The pods of a driver and of executors contain it, and the objects of jobs both of these."""


class _Strict(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True)


_Weight = Annotated[int, Field(ge=1, le=100)]
_Key = Annotated[str, Field(min_length=1, max_length=317)]


class _NodeRequirement(_Strict):
    key: _Key
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()


class _NodeTerm(_Strict):
    match_expressions: tuple[_NodeRequirement, ...] = ()
    match_fields: tuple[_NodeRequirement, ...] = ()


class _NodeSelector(_Strict):
    node_selector_terms: tuple[_NodeTerm, ...] = Field(min_length=1)


class _PreferredNodes(_Strict):
    weight: _Weight
    preference: _NodeTerm


class _NodeAffinity(_Strict):
    required: _NodeSelector | None = Field(
        default=None, alias="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[_PreferredNodes, ...] = Field(
        default=(), alias="preferredDuringSchedulingIgnoredDuringExecution"
    )


class _LabelRequirement(_Strict):
    key: _Key
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()


class _LabelSelector(_Strict):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[_LabelRequirement, ...] = ()


class _PodTerm(_Strict):
    topology_key: _Key
    label_selector: _LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class _PreferredPods(_Strict):
    weight: _Weight
    pod_affinity_term: _PodTerm


class _PodAffinity(_Strict):
    required: tuple[_PodTerm, ...] = Field(default=(), alias="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: tuple[_PreferredPods, ...] = Field(
        default=(), alias="preferredDuringSchedulingIgnoredDuringExecution"
    )


class _Affinity(_Strict):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


def checked_affinity(affinity: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the affinity. Raises `ValueError` if it isn't one that a pod of a job can have."""
    size = len(json.dumps(affinity, separators=(",", ":")).encode())
    if size > _MOST_BYTES:
        raise ValueError(f"must be at most {_MOST_BYTES:,} bytes as JSON, not {size:,}")
    try:
        _Affinity.model_validate(affinity)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        reason = "unknown or not allowed" if first["type"] == "extra_forbidden" else first["msg"]
        raise ValueError(f"{path}: {reason}") from None
    return affinity
