"""The disk of a machine whose power can fail. The real file blob store writes to it.

- Written data is in the files at once, for all processes. It is durable once it is flushed.
- When power fails, a file that was not flushed keeps a prefix, nothing or all of it. Of the changes of a
  folder that were not flushed, the first few, none or all remain. This is random.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from holdfast.persist.stores.filesystem import FileSystem, Status


@dataclass(slots=True, eq=False)
class _File:
    data: bytes = b""
    durable: bytes = b""
    modified_ms: int = 0


@dataclass(slots=True, eq=False)
class _Folder:
    entries: dict[str, "_File | _Folder"] = field(default_factory=dict)
    durable: dict[str, "_File | _Folder"] = field(default_factory=dict)
    changes: list[tuple[str, "_File | _Folder | None"]] = field(default_factory=list)

    def change(self, name: str, node: "_File | _Folder | None") -> None:
        self.changes.append((name, node))
        _put(self.entries, name, node)


def _put(entries: dict[str, "_File | _Folder"], name: str, node: "_File | _Folder | None") -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


class Disk:
    """Files and folders below one root."""

    def __init__(self, chance: random.Random, clock: Callable[[], int], root: Path = Path("/disk")) -> None:
        self.root = root
        self.clock = clock
        self._chance = chance
        self._top = _Folder()

    def lose_power(self) -> Counter[str]:
        """Forget what is not durable; what was lost."""
        lost: Counter[str] = Counter()
        self._lose(self._top, lost)
        return lost

    def _lose(self, folder: _Folder, lost: Counter[str]) -> None:
        kept = self._chance.randint(0, len(folder.changes))
        for name, node in folder.changes[:kept]:
            _put(folder.durable, name, node)
        lost["fault: names lost with power"] += len(folder.changes) - kept
        folder.changes.clear()
        folder.entries = dict(folder.durable)
        for node in folder.entries.values():
            if isinstance(node, _Folder):
                self._lose(node, lost)
            elif node.data != node.durable:
                left = self._chance.choice([0, len(node.data), self._chance.randint(0, len(node.data))])
                lost["fault: file torn by power"] += left < len(node.data)
                node.data = node.durable = node.data[:left]

    def folder(self, path: Path) -> _Folder:
        node = self.node(path)
        if not isinstance(node, _Folder):
            raise NotADirectoryError(20, "Not a directory", str(path))
        return node

    def node(self, path: Path) -> _File | _Folder:
        found: _File | _Folder = self._top
        for name in path.relative_to(self.root).parts:
            if not isinstance(found, _Folder):
                raise NotADirectoryError(20, "Not a directory", str(path))
            if name not in found.entries:
                raise FileNotFoundError(2, "No such file or directory", str(path))
            found = found.entries[name]
        return found


class DiskOf(FileSystem):
    """The disk as one process uses it; `step` runs before each change, which others may get in before."""

    def __init__(self, disk: Disk, step: Callable[[str], None] = lambda _: None) -> None:
        self._disk, self._step = disk, step
        self._open: dict[int, _File] = {}
        self._last = 0

    def create(self, path: Path) -> int:
        self._step("create")
        folder = self._disk.folder(path.parent)
        if path.name in folder.entries:
            raise FileExistsError(17, "File exists", str(path))
        self._last += 1
        file = self._open[self._last] = _File(modified_ms=self._disk.clock())
        folder.change(path.name, file)
        return self._last

    def write(self, descriptor: int, data: memoryview) -> int:
        self._step("write")
        # Half of it at a time, as a system may do: who writes must go on with the rest.
        size = (len(data) + 1) // 2
        self._open[descriptor].data += bytes(data[:size])
        return size

    def flush(self, descriptor: int) -> None:
        self._step("flush")
        file = self._open[descriptor]
        file.durable = file.data

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]

    def replace(self, source: Path, target: Path) -> None:
        self._step("replace")
        old, new = self._disk.folder(source.parent), self._disk.folder(target.parent)
        if source.name not in old.entries:
            raise FileNotFoundError(2, "No such file or directory", str(source))
        if isinstance(new.entries.get(target.name), _Folder):
            raise IsADirectoryError(21, "Is a directory", str(target))
        new.change(target.name, old.entries[source.name])
        old.change(source.name, None)

    def unlink(self, path: Path) -> None:
        self._step("unlink")
        if isinstance(self._disk.node(path), _Folder):
            raise IsADirectoryError(21, "Is a directory", str(path))
        self._disk.folder(path.parent).change(path.name, None)

    def make_folder(self, folder: Path) -> None:
        self._step("make folder")
        above = self._disk.folder(folder.parent)
        found = above.entries.get(folder.name)
        if isinstance(found, _File):
            raise FileExistsError(17, "File exists", str(folder))
        if found is None:
            above.change(folder.name, _Folder())

    def flush_folder(self, folder: Path) -> None:
        self._step("flush folder")
        found = self._disk.folder(folder)
        found.changes.clear()
        found.durable = dict(found.entries)

    def read(self, path: Path, most: int = -1) -> bytes:
        node = self._disk.node(path)
        if isinstance(node, _Folder):
            raise IsADirectoryError(21, "Is a directory", str(path))
        return node.data if most < 0 else node.data[:most]

    def open_input(self, path: Path) -> pa.NativeFile:
        return pa.BufferReader(self.read(path))

    def status(self, path: Path) -> Status:
        node = self._disk.node(path)
        if isinstance(node, _Folder):
            return Status(False, 0, 0)
        return Status(True, len(node.data), node.modified_ms)

    def scan(self, folder: Path) -> list[tuple[str, bool]]:
        return [(name, isinstance(node, _Folder)) for name, node in self._disk.folder(folder).entries.items()]

    def is_readable_folder(self, folder: Path) -> bool:
        return isinstance(self._disk.node(folder), _Folder)
