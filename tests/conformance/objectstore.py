"""An object store in memory for the log that is nothing but objects, with a switch before every request.

`before` is called with the request and the name: it may let others run, raise, or stop the caller there.
"""

import itertools
import threading
from collections.abc import Callable, Sequence

from holdfast.persist.stores.objects import Found


class Bucket:
    """What several processes share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, Found] = {}
        self.tags = itertools.count()

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = Found(data, f"t{next(self.tags)}")

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

    def get(self, name: str) -> Found | None:
        self._switch("get", name)
        with self.bucket.lock:
            return self.bucket.objects.get(name)

    def get_each(self, names: Sequence[str]) -> Sequence[Found | None]:
        return [self.get(name) for name in names]

    def create(self, name: str, data: bytes) -> bool:
        self._switch("create", name)
        with self.bucket.lock:
            if name in self.bucket.objects:
                return False
            self.bucket.put(name, data)
            return True

    def replace(self, name: str, data: bytes, tag: str) -> bool:
        self._switch("replace", name)
        with self.bucket.lock:
            if name not in self.bucket.objects or self.bucket.objects[name].tag != tag:
                return False
            self.bucket.put(name, data)
            return True

    def first_names(self, prefix: str) -> list[str]:
        self._switch("list", prefix)
        with self.bucket.lock:
            return self.bucket.names(prefix)[:50]

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
