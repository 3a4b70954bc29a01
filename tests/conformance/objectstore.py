"""An object store in memory for a log of objects. It may switch to another process before every request.

`before` is called with the request and the name. It may let others run, raise, or stop the caller there.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.persist.stores.objects import MANY, NO_TAG, Found

T = TypeVar("T")


class Bucket:
    """What several processes share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, Found] = {}
        self.tags = itertools.count()

    def put(self, name: str, data: bytes) -> str:
        tag = f"t{next(self.tags)}"
        self.objects[name] = Found(data, tag)
        return tag

    def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self.objects if name.startswith(prefix))


class MemoryObjects:
    """The bucket as one process sees it."""

    def __init__(
        self, bucket: Bucket | None = None, before: Callable[[str, str], None] = lambda *_: None
    ) -> None:
        self.bucket = bucket or Bucket()
        self.before = before
        self.requests: list[str] = []

    @property
    def description(self) -> str:
        return "memory objects"

    def get(self, name: str, tag: str = NO_TAG) -> Found | None:
        self._switch("get", name)
        with self.bucket.lock:
            found = self.bucket.objects.get(name)
            return Found(b"", tag) if found is not None and found.tag == tag else found

    def together(self, asks: Sequence[Callable[[], T]]) -> list[T]:
        return [ask() for ask in asks]

    def create(self, name: str, data: bytes) -> str:
        self._switch("create", name)
        with self.bucket.lock:
            return "" if name in self.bucket.objects else self.bucket.put(name, data)

    def replace(self, name: str, data: bytes, tag: str) -> bool:
        self._switch("replace", name)
        with self.bucket.lock:
            if name not in self.bucket.objects or self.bucket.objects[name].tag != tag:
                return False
            self.bucket.put(name, data)
            return True

    def first_names(self, prefix: str, after: str = "") -> list[str]:
        self._switch("list", prefix)
        with self.bucket.lock:
            return [name for name in self.bucket.names(prefix) if name > after][:MANY]

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._switch("delete", name)
            with self.bucket.lock:
                self.bucket.objects.pop(name, None)

    def close(self) -> None:
        pass

    def _switch(self, request: str, name: str) -> None:
        self.requests.append(f"{request} {name}")
        self.before(request, name)
