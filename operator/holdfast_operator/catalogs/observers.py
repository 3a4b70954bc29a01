"""Finds the Observed Catalogs that may have the same store, read from the API server.

Only the stores can show which of them do: see `opening.check_owner`.
"""

import asyncio
import contextlib

from holdfast.errors import BadInput
from holdfast_operator.api.catalog import Access, CatalogSpec
from holdfast_operator.catalogs.opening import Observer
from holdfast_operator.catalogs.plan import opening_for
from holdfast_operator.engine.cache import ObjectCache
from holdfast_operator.engine.handler import OperatorSettings
from holdfast_operator.engine.kube import Gone, Kube, ObjectKey
from holdfast_operator.engine.specs import parse_spec
from holdfast_operator.places.credentials import NO_CREDENTIALS, SecretNotFound, credentials_of
from holdfast_operator.places.storage import Storage, resolve


async def observers_of(
    kube: Kube, cache: ObjectCache, settings: OperatorSettings, catalog: ObjectKey
) -> tuple[Observer, ...]:
    """Returns the other Observed Catalogs of a Catalog's organization. Raises `KubeError`."""
    found = [
        await _observer(kube, settings, each, older=older)
        for each, older in cache.observers_of(catalog).items()
    ]
    return tuple(each for each in found if each is not None)


async def _observer(
    kube: Kube, settings: OperatorSettings, key: ObjectKey, *, older: bool
) -> Observer | None:
    """Returns None if the Catalog is gone, is no longer Observed, or has a location that isn't allowed."""
    try:
        spec, _ = parse_spec(CatalogSpec, await kube.read(key))
    except Gone:
        return None
    if spec is None or spec.access != Access.OBSERVED:
        return None
    storage = await asyncio.to_thread(
        resolve, spec, key.namespace, settings.data_dir, settings.allowed_locations
    )
    if not isinstance(storage, Storage):
        return None
    name = f"{key.namespace}/{key.name}"
    opening = opening_for(spec, storage, name=name, holder="", approved_upgrade="", truth="")
    credentials = NO_CREDENTIALS
    with contextlib.suppress(SecretNotFound, BadInput):
        credentials = await credentials_of(kube, key, storage, opening.stash)
    return Observer(opening, credentials, older)
