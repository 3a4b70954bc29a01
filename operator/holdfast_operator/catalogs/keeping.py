"""Keeps a Catalog until the resources that need it are gone.

Deleting a CatalogMigration needs its Catalog. So does deleting a StorageCollection that has data to delete or
a Spark job to end. Such a resource does nothing before it and its Catalog both have the operator's finalizer.

Invariants
- A StorageCollection sets the finalizer of its Catalog first, and then its own. In the other order, a user
  who deletes both in between would lose the Catalog at once. The deletion of the collection would then wait
  for the Catalog for ever if its policy is `Delete`, or becomes `Delete` in between: it may have data since
  its policy was `Retain`.
- A CatalogMigration sets its own finalizer first. Its deletion never waits for a Catalog that does not exist,
  and before the Catalog has the finalizer, the migration writes nothing that the deletion must undo.
- A resource checks the finalizer of its Catalog only after the `ObjectCache` shows that the resource needs
  it: by its deletionPolicy, by its own finalizer, or because it is about to start a job. It reads the Catalog
  from the API server, not from the informer.
- The operator removes the finalizer of a Catalog only while the `ObjectCache` has no resource that needs it.
  A resource that starts to need it meanwhile waits for the end of that write (`ObjectCache.freeing`).

One race remains. A write of the previous leader may still be in progress, and can remove the finalizer right
after the current leader saw it. The next reconciliation of the resource sets it again, but a deletion of the
Catalog in between succeeds. The same happens if a person removes the finalizer.
"""

from typing import Any, Final

from holdfast_operator.api.names import FINALIZER
from holdfast_operator.engine.handler import Services
from holdfast_operator.engine.kube import Conflict, Gone, KubeError, ObjectKey, resource_type
from holdfast_operator.engine.resources import has_finalizer, is_deleting

Json = dict[str, Any]

_STRIPPED: Final = "the finalizer was written but is missing; look for an admission webhook that removes it"


def is_loose(catalog: Json) -> bool:
    """Returns whether a deletion of the Catalog would not wait for the resources that need it."""
    return not is_deleting(catalog) and not has_finalizer(catalog)


async def keep_catalog(services: Services, key: ObjectKey) -> None:
    """Sets the finalizer of a Catalog. If the Catalog changes meanwhile, the next reconciliation retries.

    Raises `KubeError`.
    """
    try:
        body = await services.kube.read(key)
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
