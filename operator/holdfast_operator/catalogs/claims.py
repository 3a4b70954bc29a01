"""What each resource claims, to find two resources that claim the same, and the resources of a Catalog.

A resource that can't be parsed claims nothing, so it can't block one that can. The same holds for a Catalog
whose location isn't allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast_operator.api.catalog import Access, CatalogSpec
from holdfast_operator.api.collection import StorageCollectionSpec
from holdfast_operator.api.migration import CatalogMigrationSpec
from holdfast_operator.api.names import Kind, Reason
from holdfast_operator.engine.cache import Claim, ObjectCache
from holdfast_operator.engine.kube import Json, ObjectKey
from holdfast_operator.engine.specs import parse_spec
from holdfast_operator.places.storage import Storage, names_files, resolve


def new_cache(data_dir: Path | None, places: Sequence[str] = ()) -> ObjectCache:
    """Returns a cache of the operator's resources. `resolve` explains `data_dir` and `places`."""
    return ObjectCache(_Claims(data_dir, tuple(places)).of)


@dataclass(frozen=True)
class _Claims:
    data_dir: Path | None
    places: tuple[str, ...]

    def of(self, key: ObjectKey, body: Json) -> Claim:
        match key.kind:
            case Kind.CATALOG:
                asked, _ = parse_spec(CatalogSpec, body)
                return Claim() if asked is None else self._of_catalog(asked, key.namespace)
            case Kind.STORAGE_COLLECTION:
                wanted, _ = parse_spec(StorageCollectionSpec, body)
                if wanted is None:
                    return Claim(catalog=_named(key, body))
                catalog = ObjectKey(Kind.CATALOG, key.namespace, wanted.catalog_ref.name)
                name = wanted.name or key.name
                return Claim((catalog, wanted.database, wanted.schema_name, name), catalog=catalog)
            case Kind.CATALOG_MIGRATION:
                move, _ = parse_spec(CatalogMigrationSpec, body)
                if move is None:
                    return Claim(catalog=_named(key, body))
                return Claim(catalog=ObjectKey(Kind.CATALOG, key.namespace, move.catalog_ref.name))
            case Kind.COLLECTION_SNAPSHOT:
                # Its catalog is that of its collection, and doesn't wait for it.
                return Claim()

    def _of_catalog(self, spec: CatalogSpec, namespace: str) -> Claim:
        organization, observes = spec.organization_id, spec.access == Access.OBSERVED
        storage = resolve(spec, namespace, self.data_dir, self.places, follow=False)
        if isinstance(storage, Storage):
            unique = storage.stores, organization
            return Claim(unique, storage, organization_id=organization, observes=observes)
        if storage.reason is Reason.LOCATION_NOT_ALLOWED and names_files(spec):
            # Only the file system can resolve it. It doesn't block other Catalogs, and no catalog is taken
            # over from it.
            return Claim(organization_id=organization, observes=observes)
        return Claim()


def _named(dependent: ObjectKey, body: Json) -> ObjectKey | None:
    """Returns the Catalog of a resource whose spec can't be parsed. It must outlive that resource too."""
    name = body["spec"].get("catalogRef", {}).get("name")
    return ObjectKey(Kind.CATALOG, dependent.namespace, name) if isinstance(name, str) else None
