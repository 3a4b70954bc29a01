"""Where a Catalog's data is: `spec.storage` resolved to URLs. Pure."""

from dataclasses import dataclass
from pathlib import Path

from holdfast_operator.api.catalog import CatalogSpec


@dataclass(frozen=True, slots=True)
class Storage:
    """A resolved location: `url`, or `blob` and `consensus`."""

    url: str | None = None
    blob: str | None = None
    consensus: str | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        """All URLs of it."""
        return tuple(url for url in (self.url, self.blob, self.consensus) if url is not None)

    @property
    def on_one_machine(self) -> bool:
        """Whether only processes that see the same file system can open it."""
        return any(_scheme(url) in {"file", "sqlite"} for url in self.urls)

    def __str__(self) -> str:
        return " with ".join(self.urls)


@dataclass(frozen=True, slots=True)
class Refused:
    """No catalog can be kept there; `message` says why and what to do."""

    message: str


def resolve(spec: CatalogSpec, namespace: str, data_dir: Path | None) -> Storage | Refused:
    """The location of a Catalog; by default a folder of `data_dir`, the operator's own volume."""
    asked = spec.storage
    if asked.url is None and asked.blob is None:
        if data_dir is None:
            return Refused(
                "spec.storage is empty and the operator has no volume of its own; set spec.storage.url"
            )
        return Storage(url=(data_dir / namespace / spec.organization_id).absolute().as_uri())
    storage = Storage(asked.url, asked.blob, asked.consensus)
    if any(_scheme(url) == "memory" for url in storage.urls):
        return Refused("what is in memory:// is lost when the operator stops; use file:/// in spec.storage")
    return storage


def _scheme(url: str) -> str:
    return url.partition(":")[0].lower()
