"""What all API models share: the camelCase mapping, conditions, references and frontiers.

Invariants
- A model reads what any newer CRD version wrote: unknown fields are ignored, but in a spec that is to be
  done (`engine.specs`).
- Every field has a description: it becomes `kubectl explain`.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from holdfast.errors import CLOSED
from holdfast_operator.api.names import Kind


class ApiModel(BaseModel):
    """A part of a custom resource: snake_case here, camelCase there."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, use_enum_values=True
    )


def validations(*rules: tuple[str, str]) -> dict[str, Any]:
    """`json_schema_extra` for CEL rules, each `(expression, message)`."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


Frontier = Annotated[
    int | Literal["closed"],
    WithJsonSchema({"x-kubernetes-int-or-string": True}),
]
"""A time (milliseconds since the epoch for collections, a counter for catalogs), or `closed`."""


def frontier(time: int) -> int | Literal["closed"]:
    """How a frontier of the library is shown in a status."""
    return "closed" if time >= CLOSED else time


PERIOD: Final = r"^[1-9][0-9]{0,8}(ms|s|m|h|d)$"
"""A span of time as people write it: 90s, 12h, 7d."""
_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(period: str) -> int:
    """How long a `PERIOD` is."""
    number = period.rstrip("mshd")
    return int(number) * _UNITS[period.removeprefix(number)]


class LocalReference(ApiModel):
    """Names an object of the same namespace."""

    name: str = Field(min_length=1, max_length=253, description="Name of the object, in the same namespace.")


class Condition(ApiModel):
    """One condition, as `metav1.Condition`."""

    type: str = Field(max_length=316, description="Type of the condition, in CamelCase.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    observed_generation: int = Field(
        default=0, ge=0, description="The metadata.generation that the condition was set for."
    )
    last_transition_time: datetime = Field(description="When the status last changed.")
    reason: str = Field(
        min_length=1, max_length=1024, description="Why the condition has its status, in CamelCase."
    )
    message: str = Field(max_length=32768, description="The same for humans, with what to do next.")


class DeletionStatus(ApiModel):
    """How far a deletion is whose store fails."""

    store_failed_seconds: int = Field(
        default=0, description="For how many seconds the operator tried and failed, up to 600."
    )
    last_failure: str | None = Field(default=None, description="Why the last try failed.")


class Status(ApiModel):
    """What every status has."""

    observed_generation: int | None = Field(
        default=None, description="The metadata.generation that this status tells about."
    )
    deletion: DeletionStatus | None = Field(
        default=None, description="How far the deletion is; there is nothing where no try has failed."
    )
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=32,
        description="Ready, Reconciling and Stalled (kstatus), and conditions of single tasks.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """One column of `kubectl get`."""

    name: str
    type: Literal["string", "integer", "date", "number", "boolean"]
    path: str
    description: str
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Definition:
    """What a CRD needs beside the schema of its model."""

    kind: Kind
    short_names: tuple[str, ...]
    columns: tuple[PrinterColumn, ...]
    description: str
    rules: tuple[tuple[str, str, str], ...] = ()
    """CEL rules over the whole resource, each `(expression, message, path of the field that it is about)`."""


class Resource(ApiModel):
    """The root of a custom resource; `metadata` stays with the caller."""

    definition: ClassVar[Definition]


READY_COLUMN = PrinterColumn(
    "Ready",
    "string",
    '.status.conditions[?(@.type=="Ready")].status',
    "Whether the durable state is as asked.",
)
REASON_COLUMN = PrinterColumn(
    "Reason",
    "string",
    '.status.conditions[?(@.type=="Ready")].reason',
    "Why it is ready or not, in a word; the conditions say it in full.",
)
AGE_COLUMN = PrinterColumn("Age", "date", ".metadata.creationTimestamp", "How long ago it was created.")
