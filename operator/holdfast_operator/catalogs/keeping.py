"""Keeps a Catalog for the resources that need it until their own end.

A CatalogMigration, and a StorageCollection that has data to delete or a Spark job to end, can only be ended
where its Catalog is. Such a resource does nothing beyond its own finalizer before its Catalog has ours, too.

Invariants
- A resource looks for the finalizer of its Catalog only after its own is there and noted in the `Cache`. It
  looks at the Catalog as the API server has it, not as the informer last saw it.
- The operator takes the finalizer off a Catalog only while the `Cache` has no resource that needs it, and a
  resource that begins meanwhile waits for the end of that write (`Cache.freeing`).

One race remains: a write of an operator that led before may still be under way. It can take the finalizer
off right after the operator that leads now saw it. The next look at the resource puts it on again; a
deletion of the Catalog in between goes through. The same holds where a person takes the finalizer off.
"""

from typing import Any, Final

from holdfast_operator.api.names import FINALIZER
from holdfast_operator.engine.handler import Services
from holdfast_operator.engine.kube import Conflict, Gone, KubeError, ObjectKey, resource_type
from holdfast_operator.engine.resources import has_finalizer, is_deleting

Json = dict[str, Any]

_STRIPPED: Final = "the finalizer was written and is not there; look for an admission webhook that removes it"


def is_loose(catalog: Json) -> bool:
    """Whether a deletion of a Catalog would not wait for the resources that need it."""
    return not is_deleting(catalog) and not has_finalizer(catalog)


async def keep_catalog(services: Services, key: ObjectKey) -> None:
    """Put the finalizer on a Catalog, unless it changed meanwhile: then it is looked at again.

    Raises `KubeError`.
    """
    try:
        body = await services.kube.get(key)
        if not is_loose(body):
            return
        metadata = body["metadata"]
        change = {
            "resourceVersion": metadata["resourceVersion"],
            "finalizers": [*metadata.get("finalizers", []), FINALIZER],
        }
        type_ = resource_type(key.kind)
        written = await services.kube.patch(type_, key.namespace, key.name, {"metadata": change})
    except (Conflict, Gone):
        return
    services.seen(key, written)
    if is_loose(written):
        raise KubeError(f"{key}: {_STRIPPED}")
