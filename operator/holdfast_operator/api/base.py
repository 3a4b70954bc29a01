"""The parts that all API models share: the camelCase mapping, conditions, references and frontiers.

Invariants
- A model can read a resource that a newer CRD version wrote, because it ignores unknown fields. The only
  exception is a spec that the operator is about to act on (`engine.specs`).
- Every field has a description, which `kubectl explain` shows.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from holdfast.errors import CLOSED
from holdfast_operator.api.names import Kind


class ApiModel(BaseModel):
    """A part of a custom resource: snake_case in Python, camelCase in the resource."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, use_enum_values=True
    )

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Returns the model itself, because nobody changes it.

        pydantic copies a default that has no hash for each object that it parses. That took as long as the
        rest of the parsing.
        """
        return self


def validations(*rules: tuple[str, str]) -> dict[str, Any]:
    """`json_schema_extra` for CEL rules, each `(expression, message)`."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


UNSEEN: Final[dict[str, Any]] = {"default": None}
"""Keeps a default out of the CRD, so that a CEL rule or `model_fields_set` shows whether the field is set."""

Frontier = Annotated[
    int | Literal["closed"],
    WithJsonSchema({"x-kubernetes-int-or-string": True}),
]
"""A time (milliseconds since the epoch for collections, a counter for catalogs), or `closed`."""


def frontier(time: int) -> int | Literal["closed"]:
    """Returns a frontier of the library in the form that a status shows."""
    return "closed" if time >= CLOSED else time


def matches(pattern: str, message: str) -> tuple[str, str]:
    """Returns a CEL rule for a text with a pattern, as `validations` takes it.

    `message` says what the text must be. The API server's own message for a `pattern` shows only the
    expression.
    """
    return f"self.matches('{pattern}')", message


def check(pattern: str, message: str) -> AfterValidator:
    """Returns the validator of the model for the rule `matches`."""

    def checked(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(message)
        return text

    return AfterValidator(checked)


_PERIOD: Final = r"^[1-9][0-9]{0,8}(ms|s|m|h|d)$"
_NO_PERIOD: Final = "must be a number with ms, s, m, h or d, such as 90s, 12h or 7d"
Period = Annotated[
    str,
    Field(max_length=16, json_schema_extra=validations(matches(_PERIOD, _NO_PERIOD))),
    check(_PERIOD, _NO_PERIOD),
]
"""A span of time as people write it: 90s, 12h, 7d."""

_UUID: Final = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_NO_UUID: Final = "must be a UUID in lower case, such as 4f2c1f0a-7a3d-4a52-9d55-0c8f5f6b1e2d"
IS_UUID: Final = matches(_UUID, _NO_UUID)
Uuid = Annotated[str, Field(max_length=36, json_schema_extra=validations(IS_UUID)), check(_UUID, _NO_UUID)]

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(period: str) -> int:
    """Returns the length of a `Period` in milliseconds."""
    number = period.rstrip("mshd")
    return int(number) * _UNITS[period.removeprefix(number)]


Duration = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,8}(s|m|h|d)$", max_length=10)]
"""A `Period` of whole seconds, for limits and deadlines."""


def seconds(duration: str) -> int:
    """Returns the length of a `Duration` in seconds."""
    return milliseconds(duration) // 1000


def between(least: str, most: str) -> AfterValidator:
    """Returns a validator for a `Duration` with limits."""

    def checked(duration: str) -> str:
        if not seconds(least) <= seconds(duration) <= seconds(most):
            raise ValueError(f"must be between {least} and {most}")
        return duration

    return AfterValidator(checked)


_BYTES: Final = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_QUANTITY: Final = r"^[1-9][0-9]{0,11}(Ki|Mi|Gi|Ti)?$"
_OR_ZERO: Final = r"^(0|[1-9][0-9]{0,11}(Ki|Mi|Gi|Ti)?)$"
IntOrText = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
Quantity = Annotated[
    IntOrText,
    StringConstraints(pattern=_QUANTITY),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": _QUANTITY, "maxLength": 14, "minimum": 1}),
]
"""A number of bytes, as Kubernetes writes it: 512Mi, 20Gi, or a plain number."""
QuantityOrZero = Annotated[
    IntOrText,
    StringConstraints(pattern=_OR_ZERO),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": _OR_ZERO, "maxLength": 14, "minimum": 0}),
]


def byte_count(quantity: str) -> int:
    """Returns the number of bytes of a `Quantity`."""
    number = quantity.rstrip("KMGTi")
    return int(number) * _BYTES[quantity.removeprefix(number)]


class LocalReference(ApiModel):
    """Names an object in the same namespace."""

    name: str = Field(min_length=1, max_length=253, description="Name of the object, in the same namespace.")


class Condition(ApiModel):
    """One condition, in the form that all Kubernetes resources use."""

    type: str = Field(max_length=316, description="Type of the condition, in CamelCase.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    observed_generation: int = Field(
        default=0, ge=0, description="The metadata.generation that the condition was computed for."
    )
    last_transition_time: datetime = Field(description="When the condition's status last changed.")
    reason: str = Field(
        min_length=1, max_length=1024, description="Why the condition has its status, in CamelCase."
    )
    message: str = Field(
        max_length=32768, description="Why the condition has its status, as a sentence, and what to do next."
    )


class DeletionStatus(ApiModel):
    """The progress of a deletion whose store fails."""

    store_failed_seconds: int = Field(
        default=0, description="Seconds for which the operator has tried and failed, up to 600."
    )
    last_failure: str | None = Field(default=None, description="Why the last attempt failed.")


class Status(ApiModel):
    """The fields that every status has."""

    observed_generation: int | None = Field(
        default=None, description="The metadata.generation that this status describes."
    )
    deletion: DeletionStatus | None = Field(
        default=None, description="Progress of the deletion. Absent unless an attempt has failed."
    )
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=32,
        description="Ready, Reconciling and Stalled (kstatus), and conditions of individual tasks.",
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
    """What a CRD needs in addition to the schema of its model."""

    kind: Kind
    short_names: tuple[str, ...]
    columns: tuple[PrinterColumn, ...]
    description: str
    selectable: tuple[str, ...]
    """Paths that `kubectl get --field-selector` can compare with a value."""
    rules: tuple[tuple[str, str, str], ...] = ()
    """CEL rules over the whole resource, each `(expression, message, path of the field that it is about)`."""


def seen_void(field: str) -> str:
    """Returns a CEL expression that is true if the old status shows that the store has nothing yet.

    `field` is in the status as soon as the store has something. A status that is lost, for example because a
    backup of the resource had none, shows nothing: until the operator has looked again, the expression is
    false. So what can't change in an existing object stays protected.
    """
    return (
        "(has(oldSelf.status) && has(oldSelf.status.observedGeneration) && "
        f"oldSelf.status.observedGeneration > 0 && !has(oldSelf.status.{field}))"
    )


class Resource(ApiModel):
    """The root of a custom resource, without `metadata`, which callers read themselves."""

    definition: ClassVar[Definition]


READY_COLUMN = PrinterColumn(
    "Ready",
    "string",
    '.status.conditions[?(@.type=="Ready")].status',
    "Whether the stored data matches the spec.",
)
REASON_COLUMN = PrinterColumn(
    "Reason",
    "string",
    '.status.conditions[?(@.type=="Ready")].reason',
    "Why the resource is ready or not, in one word. The conditions have the details.",
)
AGE_COLUMN = PrinterColumn("Age", "date", ".metadata.creationTimestamp", "Time since it was created.")
