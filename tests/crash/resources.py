"""The resources of one campaign: a namespace with a Catalog, and a CatalogMigration for each move."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from testbed.kube import ControlPlane

CRDS: Final = Path(__file__).parents[2] / "crds"
CATALOG: Final = "demo"
MIGRATIONS: Final = "catalogmigrations"
CATALOGS: Final = "catalogs"
_VERSION: Final = "v1alpha1"
_GROUP: Final = "holdfast.dev"


class Resources:
    """One namespace; a context manager that deletes it."""

    def __init__(self, cluster: ControlPlane, namespace: str) -> None:
        self._cluster = cluster
        self.namespace = namespace

    def __enter__(self) -> Self:
        from kubernetes.client import CustomObjectsApi

        with ExitStack() as unless_made:
            self._api = CustomObjectsApi(unless_made.enter_context(self._cluster.api()))
            self._cluster.apply(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
            )
            unless_made.callback(self._cluster.kubectl, "delete", "namespace", self.namespace, "--wait=false")
            self._cluster.kubectl("apply", "-k", CRDS)
            labels = ("-l", "app.kubernetes.io/name=holdfast", "--timeout=60s")
            self._cluster.kubectl("wait", "--for=condition=Established", "crd", *labels)
            unless_made.callback(self._let_go_of_all)
            self._ends = unless_made.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def make_catalog(self, credentials: dict[str, str], **spec: Any) -> None:
        """A Catalog, whose stash has these credentials."""
        meta = {"namespace": self.namespace}
        stash = {**spec.pop("stash"), "credentialsSecretRef": {"name": "stash"}}
        self._cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "stash", **meta},
                "stringData": credentials,
            },
            {
                "apiVersion": f"{_GROUP}/{_VERSION}",
                "kind": "Catalog",
                "metadata": {"name": CATALOG, **meta},
                "spec": {**spec, "stash": stash},
            },
        )

    def make_migration(self, name: str, **spec: Any) -> None:
        """A CatalogMigration of it."""
        body = {
            "apiVersion": f"{_GROUP}/{_VERSION}",
            "kind": "CatalogMigration",
            "metadata": {"name": name},
            "spec": {"catalogRef": {"name": CATALOG}, **spec},
        }
        self._api.create_namespaced_custom_object(_GROUP, _VERSION, self.namespace, MIGRATIONS, body)

    def roll_back(self, name: str) -> None:
        """Have a migration go back."""
        change = {"spec": {"rollback": True}}
        self._api.patch_namespaced_custom_object(
            _GROUP, _VERSION, self.namespace, MIGRATIONS, name, body=change
        )

    def status(self, plural: str, name: str) -> dict[str, Any]:
        """What a status says."""
        return dict(self._get(plural, name).get("status", {}))

    def doctor(self, name: str, **status: Any) -> None:
        """Make the status of a migration one that looks as if it were of its present spec."""
        body = self._get(MIGRATIONS, name)
        body["status"] = {"observedGeneration": body["metadata"]["generation"], **status}
        self._api.replace_namespaced_custom_object_status(
            _GROUP, _VERSION, self.namespace, MIGRATIONS, name, body
        )

    def delete_all(self) -> None:
        """Delete them, and wait for it: an operator is there that lets go of them."""
        kinds = f"{MIGRATIONS},{CATALOGS}"
        self._cluster.kubectl("-n", self.namespace, "delete", kinds, "--all", "--timeout=100s")

    def _get(self, plural: str, name: str) -> dict[str, Any]:
        return dict(
            self._api.get_namespaced_custom_object(_GROUP, _VERSION, self.namespace, plural, name)  # type: ignore[arg-type]
        )

    def _let_go_of_all(self) -> None:
        """What nobody finalizes any more would keep the namespace."""
        for plural in (MIGRATIONS, CATALOGS):
            found = self._api.list_namespaced_custom_object(_GROUP, _VERSION, self.namespace, plural)
            for each in found["items"]:  # type: ignore[index]
                self._api.patch_namespaced_custom_object(
                    _GROUP,
                    _VERSION,
                    self.namespace,
                    plural,
                    each["metadata"]["name"],
                    body={"metadata": {"finalizers": None}},
                )
