"""Parses a spec into its model, or returns one line with the problem.

Invariants
- An unknown field comes from a newer CRD. If the operator ignored it, it would do something else than the
  spec says. So the object waits for an operator that knows the field.
- In an object that is being deleted, unknown fields are ignored.
"""

from typing import Any, TypeVar

from pydantic import ValidationError

from holdfast_operator.api.base import ApiModel
from holdfast_operator.engine.kube import Json

S = TypeVar("S", bound=ApiModel)

_UNKNOWN = "extra_forbidden"


def parse_spec(model: type[S], body: Json) -> tuple[S | None, str]:
    """Returns the spec and an empty problem, or None and the first problem with its path."""
    return _parse(model, body, body.get("spec", {}), "spec")


def parse_part(model: type[S], body: Json, field: str) -> tuple[S | None, str]:
    """Returns one field of the spec as `parse_spec` does. An absent field is empty."""
    return _parse(model, body, body.get("spec", {}).get(field, {}), f"spec.{field}")


def _parse(model: type[S], body: Json, found: Any, place: str) -> tuple[S | None, str]:
    deleting = body["metadata"].get("deletionTimestamp")
    try:
        return model.model_validate(found, extra="ignore" if deleting else "forbid"), ""
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join([place, *(str(part) for part in first["loc"])])
        if first["type"] == _UNKNOWN:
            return None, f"{path}: unknown to this operator, because the CRD is newer; upgrade the operator"
        # The operator's own validators have their own messages.
        reason = first.get("ctx", {}).get("error", first["msg"])
        return None, f"{path}: {reason}"
