"""What a resource says of itself, beside its spec: annotations, the finalizer, the deletion."""

from holdfast_operator.api.names import FINALIZER
from holdfast_operator.engine.kube import Json


def kept_fields(status: Json) -> Json:
    """The fields of a status that are those of its kind."""
    return {name: value for name, value in status.items() if name not in {"observedGeneration", "conditions"}}


def has_finalizer(body: Json) -> bool:
    """Whether our finalizer keeps the object."""
    return FINALIZER in body["metadata"].get("finalizers", [])


def annotation(body: Json, name: str) -> str:
    """The value of an annotation; empty where it isn't set."""
    return str((body["metadata"].get("annotations") or {}).get(name, ""))


def is_deleting(body: Json) -> bool:
    """Whether somebody asked to delete the object."""
    return bool(body["metadata"].get("deletionTimestamp"))
