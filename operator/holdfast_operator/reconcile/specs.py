"""Says in one line what is wrong with a spec that doesn't fit its model."""

from pydantic import ValidationError


def problem_of(error: ValidationError) -> str:
    """The first thing that is wrong, with its path in the resource."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = ".".join(["spec", *(str(part) for part in first["loc"])])
    return f"{path}: {first['msg']}"
