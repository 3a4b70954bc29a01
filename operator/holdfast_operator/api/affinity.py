"""The affinity of pods, as in a pod's spec, with limits on everything.

The API server refuses what exceeds them, because it can hold an object in memory much more cheaply than a
client that parses it. `namespaces` and `namespaceSelector` are missing on purpose: pods that a resource asks
for depend only on pods of its own namespace.
"""

import json
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from holdfast_operator.api.base import UNSEEN, ApiModel

_MOST_BYTES: Final = 16 * 1024
"""As JSON. The pods of a driver and of executors contain it, and the objects of jobs both of these. A schema
can't state a total, so the operator checks it."""
_MOST_TERMS: Final = 8
_MOST_REQUIREMENTS: Final = 4
_MOST_VALUES: Final = 16

_Weight = Annotated[int, Field(ge=1, le=100)]
_Key = Annotated[str, StringConstraints(min_length=1, max_length=317)]
_Value = Annotated[str, StringConstraints(max_length=63)]
_Values = Annotated[tuple[_Value, ...], Field(max_length=_MOST_VALUES)]
_Keys = Annotated[tuple[_Key, ...], Field(max_length=_MOST_REQUIREMENTS)]


class NodeRequirement(ApiModel):
    """What a label of a node must be."""

    key: _Key = Field(description="Name of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = Field(
        description="How the label is compared."
    )
    values: _Values = Field(default=(), description="What it is compared with.")


class NodeField(ApiModel):
    """What a field of a node must be."""

    key: Literal["metadata.name"] = Field(description="Name of the field.")
    operator: Literal["In", "NotIn"] = Field(description="How the field is compared.")
    values: tuple[Annotated[str, StringConstraints(max_length=253)], ...] = Field(
        min_length=1, max_length=1, description="Name of the node."
    )


class NodeTerm(ApiModel):
    """Nodes that meet all requirements."""

    match_expressions: tuple[NodeRequirement, ...] = Field(
        default=(), max_length=_MOST_REQUIREMENTS, description="Requirements of labels."
    )
    match_fields: tuple[NodeField, ...] = Field(
        default=(), max_length=_MOST_REQUIREMENTS, description="Requirements of fields."
    )


class NodeSelector(ApiModel):
    """Nodes of any of the terms."""

    node_selector_terms: tuple[NodeTerm, ...] = Field(
        min_length=1, max_length=_MOST_TERMS, description="Terms, of which a node must meet one."
    )


class PreferredNodes(ApiModel):
    """Nodes that are better than others."""

    weight: _Weight = Field(description="How much better, from 1 to 100.")
    preference: NodeTerm = Field(description="The nodes.")


class NodeAffinity(ApiModel):
    """The nodes of the pods."""

    required: NodeSelector | None = Field(
        default=None,
        alias="requiredDuringSchedulingIgnoredDuringExecution",
        description="Nodes that the pods may run on.",
    )
    preferred: tuple[PreferredNodes, ...] = Field(
        default=(),
        max_length=_MOST_TERMS,
        alias="preferredDuringSchedulingIgnoredDuringExecution",
        description="Nodes that are better than others.",
    )


class LabelRequirement(ApiModel):
    """What a label of a pod must be."""

    key: _Key = Field(description="Name of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        description="How the label is compared."
    )
    values: _Values = Field(default=(), description="What it is compared with.")


class LabelSelector(ApiModel):
    """Pods that meet all requirements."""

    match_labels: dict[_Key, _Value] = Field(
        default={},
        description="Labels that the pods must have.",
        json_schema_extra={"maxProperties": _MOST_REQUIREMENTS} | UNSEEN,
    )
    match_expressions: tuple[LabelRequirement, ...] = Field(
        default=(), max_length=_MOST_REQUIREMENTS, description="Requirements of labels."
    )


class PodTerm(ApiModel):
    """Other pods, and the places that they are in."""

    topology_key: _Key = Field(description="Label of nodes. Nodes with the same value are one place.")
    label_selector: LabelSelector | None = Field(default=None, description="The other pods.")
    match_label_keys: _Keys = Field(
        default=(), description="Labels in which the other pods must be like the pod."
    )
    mismatch_label_keys: _Keys = Field(
        default=(), description="Labels in which the other pods must differ from the pod."
    )


class PreferredPods(ApiModel):
    """Other pods near which, or far from which, a pod is better placed."""

    weight: _Weight = Field(description="How much better, from 1 to 100.")
    pod_affinity_term: PodTerm = Field(description="The other pods.")


class PodAffinity(ApiModel):
    """Other pods of the namespace."""

    required: tuple[PodTerm, ...] = Field(
        default=(),
        max_length=_MOST_TERMS,
        alias="requiredDuringSchedulingIgnoredDuringExecution",
        description="What must hold when a pod is placed.",
    )
    preferred: tuple[PreferredPods, ...] = Field(
        default=(),
        max_length=_MOST_TERMS,
        alias="preferredDuringSchedulingIgnoredDuringExecution",
        description="What is better.",
    )


class Affinity(ApiModel):
    """Rules for the nodes that pods run on."""

    node_affinity: NodeAffinity | None = Field(default=None, description="The nodes of the pods.")
    pod_affinity: PodAffinity | None = Field(
        default=None, description="Pods of the same namespace to be near to."
    )
    pod_anti_affinity: PodAffinity | None = Field(
        default=None, description="Pods of the same namespace to be far from."
    )

    def in_pod(self) -> dict[str, Any]:
        """Returns it as in a pod's spec."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    @model_validator(mode="after")
    def _checked(self) -> Self:
        size = len(json.dumps(self.in_pod(), separators=(",", ":")).encode())
        if size > _MOST_BYTES:
            raise ValueError(f"must be at most {_MOST_BYTES:,} bytes as JSON, not {size:,}")
        return self
