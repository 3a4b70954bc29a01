"""Reads a spec as its model, or says in one line what is wrong with it."""

from typing import TypeVar

from pydantic import ValidationError

from holdfast_operator.api.base import ApiModel
from holdfast_operator.runtime.kube import Json

S = TypeVar("S", bound=ApiModel)


def parse_spec(model: type[S], body: Json) -> tuple[S | None, str]:
    """The spec of a resource and no problem, or None and the first thing that is wrong, with its path."""
    try:
        return model.model_validate(body.get("spec", {})), ""
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(["spec", *(str(part) for part in first["loc"])])
        return None, f"{path}: {first['msg']}"
