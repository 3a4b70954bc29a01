"""Reads the metadata of a resource: annotations, the finalizer, the deletion."""

from holdfast_operator.api.names import FINALIZER
from holdfast_operator.engine.kube import Json


def kept_fields(status: Json) -> Json:
    """Returns the fields of a status that belong to its kind: all but the common ones."""
    return {name: value for name, value in status.items() if name not in {"observedGeneration", "conditions"}}


def has_finalizer(body: Json) -> bool:
    """Returns whether the object has the operator's finalizer."""
    return FINALIZER in body["metadata"].get("finalizers", [])


def annotation(body: Json, name: str) -> str:
    """Returns the value of an annotation, or empty if it isn't set."""
    return str((body["metadata"].get("annotations") or {}).get(name, ""))


def is_deleting(body: Json) -> bool:
    """Returns whether the object is being deleted."""
    return bool(body["metadata"].get("deletionTimestamp"))
