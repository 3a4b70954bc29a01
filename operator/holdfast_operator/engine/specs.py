"""Reads a spec as its model, or says in one line what is wrong with it.

Invariants
- A field that isn't known here comes from a newer CRD: to leave it out would be to do something else than
  what is asked for, so the object waits for an operator that knows it.
- What is being deleted is read as far as it is understood.
"""

from typing import TypeVar

from pydantic import ValidationError

from holdfast_operator.api.base import ApiModel
from holdfast_operator.engine.kube import Json

S = TypeVar("S", bound=ApiModel)

_UNKNOWN = "extra_forbidden"


def parse_spec(model: type[S], body: Json) -> tuple[S | None, str]:
    """The spec of a resource and no problem, or None and the first thing that is wrong, with its path."""
    deleting = body["metadata"].get("deletionTimestamp")
    try:
        return model.model_validate(body.get("spec", {}), extra="ignore" if deleting else "forbid"), ""
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(["spec", *(str(part) for part in first["loc"])])
        if first["type"] == _UNKNOWN:
            return None, f"{path}: this operator doesn't know it, the CRD is newer; upgrade the operator"
        # A validator of ours says it in its own words.
        reason = first.get("ctx", {}).get("error", first["msg"])
        return None, f"{path}: {reason}"
