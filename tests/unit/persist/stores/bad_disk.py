"""A child of the tests of bad disks: `bad_disk.py FOLDER SCENARIO [LOG]`, in a mount namespace of its own.

It mounts a small file system over FOLDER, lets a client meet what happens to it, and prints what came of it
as one line of JSON.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError, Indeterminate
from holdfast.persist import PersistClient, PersistConfig, Schema, WriteHandle
from holdfast.persist.session import Mode
from holdfast.persist.stores import CacheConfig, CachedBlob, MemoryBlob

SHARD = "s00000000-0000-4000-8000-000000000001"
SCHEMA = Schema.of({"k": "int64"}, {"v": "string"})
FOLDER = Path(sys.argv[1])
DATA = FOLDER / "data"
BALLAST = FOLDER / "ballast"


def mount(options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(FOLDER)], check=True)


def opened(mode: Mode = "write", **options: Any) -> PersistClient:
    """A client of blobs on the bad disk; the log is beside them, or where the test wants it."""
    config = PersistConfig(maintenance="off", retry_deadline_s=0.2, **options)
    log = sys.argv[3] if len(sys.argv) > 3 else str(DATA / "consensus.sqlite")
    return PersistClient.open(
        blob=f"file://{DATA}/blob", consensus=f"sqlite://{log}", mode=mode, config=config
    )


def fill() -> None:
    """Leave no byte free."""
    with BALLAST.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue


def told(act: Callable[[], object]) -> dict[str, str] | None:
    """The error of `act`, as a user sees it."""
    try:
        act()
    except HoldfastError as error:
        return {"class": type(error).__name__, "message": str(error), "hint": error.hint}
    return None


def contents(client: PersistClient, upper: int) -> list[int]:
    with client.reader(SHARD, purpose="look") as reader:
        return sorted(reader.snapshot(upper - 1).to_table()["k"].to_pylist())


def append_until_refused(writer: WriteHandle, upper: int) -> tuple[int, dict[str, str]]:
    """Append row after row; the upper that was acknowledged, and the error that ended it."""
    while True:
        rows = [{"k": upper, "v": "x" * 4000}]
        error = told(partial(writer.compare_and_append, rows, upper, upper + 1))
        if error is not None:
            return upper, error
        upper += 1


def suffer(begin: Callable[[], None], end: Callable[[], None], **options: object) -> dict[str, object]:
    """Appends before, while and after the disk is bad; what was said and what is there."""
    with opened(**options) as client:
        writer = client.writer(SHARD, SCHEMA, purpose="test")
        for time in range(3):
            writer.compare_and_append([{"k": time, "v": "x" * 4000}], time, time + 1)
        begin()
        upper, error = append_until_refused(writer, 3)
        with opened("read") as reading:
            meanwhile = contents(reading, upper)
        end()
        if error["class"] == Indeterminate.__name__:
            writer = client.writer(SHARD, SCHEMA, purpose="test")
        now = client.recent_upper(SHARD)
        writer.compare_and_append([{"k": now, "v": ""}], now, now + 1)
        return {
            "error": error,
            "acknowledged": upper,
            "meanwhile": meanwhile,
            "upper": now,
            "rows": contents(client, now + 1),
        }


def main() -> dict[str, object]:
    scenario = sys.argv[2]
    mount("size=6m")
    match scenario:
        case "full blob":
            return suffer(fill, BALLAST.unlink, inline_max_bytes=0)
        case "full log":
            return suffer(fill, BALLAST.unlink)
        case "full from the start":
            fill()
            error = told(opened)
            left = [path.name for path in FOLDER.rglob("*") if path.is_file() and path.stat().st_size]
            BALLAST.unlink()
            opened().close()
            return {"error": error, "left": left}
        case "read-only when it is opened again":
            with opened() as client:
                writer = client.writer(SHARD, SCHEMA, purpose="test")
                writer.compare_and_append([{"k": 0, "v": ""}], 0, 1)
            mount_again("ro")
            error = told(opened)
            with opened("read") as reading:
                meanwhile = contents(reading, 1)
            mount_again("rw")
            with opened() as client:
                writer = client.writer(SHARD, SCHEMA, purpose="test")
                writer.compare_and_append([{"k": 1, "v": ""}], 1, 2)
                return {"error": error, "meanwhile": meanwhile, "rows": contents(client, 2)}
        case "read-only":
            return suffer(lambda: mount_again("ro"), lambda: mount_again("rw"), inline_max_bytes=0)
        case "read-only from the start":
            DATA.mkdir()
            mount_again("ro")
            return {"error": told(opened), "left": [path.name for path in DATA.iterdir()]}
        case "full cache":
            inner = MemoryBlob()
            config = CacheConfig(memory_bytes=0, folder=FOLDER / "cache")
            cached = CachedBlob(inner, config, scope="l")
            fill()
            data = {f"k{number}": bytes([number]) * 100_000 for number in range(5)}
            for key, value in data.items():
                cached.put(key, value)
            right = all(cached.get(key) == value for key, value in data.items())
            temporary = [path.name for path in (FOLDER / "cache").iterdir()]
            failures = cached.stats().failures
            BALLAST.unlink()
            hits = [cached.get(key) == value for key, value in data.items() for _ in range(2)]
            return {
                "right": right and all(hits),
                "left": temporary,
                "failures": failures,
                "hits": cached.stats().folder_hits,
            }
    raise AssertionError(scenario)


def mount_again(how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(FOLDER)], check=True)


print(json.dumps(main()))
