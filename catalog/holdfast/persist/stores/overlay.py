# ruff: noqa: D102 - the trait documents its methods
"""A blob store for dry runs: it keeps what is put in memory."""

from holdfast.errors import NotWritable
from holdfast.persist.stores.layer import BlobLayer
from holdfast.persist.stores.traits import Blob, check_key


class OverlayBlob(BlobLayer):
    """`inner`, with what was put here on top. Listings show only `inner`."""

    def __init__(self, inner: Blob) -> None:
        super().__init__(inner)
        self._put: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        found = self._put.get(key)
        return super().get(key) if found is None else found

    def get_start(self, key: str, most: int) -> bytes | None:
        found = self._put.get(key)
        return super().get_start(key, most) if found is None else found[:most]

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._put[check_key(key)] = bytes(data)

    def delete(self, key: str) -> bool:
        raise NotWritable(f"{self.description} is open for a dry run: {key} can't be deleted")

    def close(self) -> None:
        """Leave the store below open, because it belongs to the caller."""
