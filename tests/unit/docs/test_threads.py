"""Which public objects threads may share: docstrings and a page say it, and here threads share these."""

import contextlib
import dataclasses
import enum
import importlib
import inspect
import re
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow.compute as pc
import pytest

import holdfast
from holdfast.catalog import OpenMode, linked_catalog, persist_catalog, shadow_catalog, stash_catalog
from holdfast.catalog.objects.registry import CONFIGS
from holdfast.collections import CollectionSpec, StorageController
from holdfast.collections.record.spec import Recipe
from holdfast.persist import (
    Clock,
    PersistClient,
    Schema,
    StoreMetrics,
    TypedReader,
    TypedUpdate,
    TypedWriter,
    ValueCodec,
)
from holdfast.stash import Stash
from holdfast.stash.url import open_stash
from testbed import docpages

PACKAGES = ("tables", "persist", "catalog", "collections", "stash", "ingest", "spark")
PAGE = (docpages.ROOT / "docs" / "reference" / "threads.md").read_text()
YOURS = {"Codec", "ValueCodec"}
"""Base classes of what users write."""
THREADS = 4
SCHEMA = Schema.of({"k": "int64"}, {"v": "string"})
ORG = "00000000-0000-4000-8000-000000000008"
WHO = {"holder": "me", "purpose": "test"}


def is_value(kind: type) -> bool:
    """Whether objects of a class never change."""
    if issubclass(kind, Exception | enum.Enum | tuple):
        return True
    return dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen


def public() -> dict[str, type]:
    modules = [importlib.import_module(f"holdfast.{name}") for name in PACKAGES]
    named = {name: getattr(module, name) for module in modules for name in module.__all__}
    return {name: kind for name, kind in named.items() if inspect.isclass(kind) and not is_value(kind)}


def listed() -> tuple[set[str], set[str]]:
    """The classes in the two columns of the page's table."""
    rows = [line.split("|")[1:3] for line in PAGE.splitlines() if line.startswith("| ")][1:]
    safe, unsafe = ({name for row in rows for name in re.findall(r"`([A-Z]\w+)`", row[at])} for at in (0, 1))
    return safe, unsafe


def test_the_docstring_of_each_public_class_says_what_the_page_says() -> None:
    safe, unsafe = listed()
    classes = public()
    assert safe | unsafe | YOURS == set(classes)
    for name, kind in classes.items():
        says = " ".join((kind.__doc__ or "").split())
        if name in YOURS:
            assert "must be thread-safe" in says, name
        else:
            assert ("Not thread-safe" in says) == (name in unsafe), name
            assert ("Thread-safe" in says) == (name in safe), name


class Text(ValueCodec[str, str]):
    name = "text"
    version = 1

    def encode_key(self, key: str) -> bytes:
        return key.encode()

    def decode_key(self, data: bytes) -> str:
        return data.decode()

    encode_value, decode_value = encode_key, decode_key


def together(*calls: Callable[[int], object], turns: int = 2) -> None:
    """Make each call in several threads at the same time, with different numbers. Raises their errors."""
    ready = threading.Barrier(THREADS * len(calls))

    def run(call: Callable[[int], object], number: int) -> None:
        ready.wait()
        for turn in range(turns):
            call(turns * number + turn)

    with ThreadPoolExecutor(THREADS * len(calls)) as pool:
        for done in [pool.submit(run, call, number) for call in calls for number in range(THREADS)]:
            done.result()


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4()}"


@pytest.mark.long
def test_threads_share_a_table_and_a_query(url: str) -> None:
    with holdfast.table(url, "orders", columns={"id": "int64", "n": "int64"}, key=["id"]) as orders:
        time = orders.append([{"id": 100, "n": 0}])
        result = holdfast.sql(url, "select sum(n) as n from orders")
        together(
            lambda number: orders.append([{"id": number, "n": 1}]),
            lambda _: orders.update(
                [100], lambda rows: rows.set_column(1, "n", [[rows["n"][0].as_py() + 1]])
            ),
            lambda _: orders.update(where=[("id", "=", 100)], set={"n": pc.field("n") + 1}),
            lambda _: orders.read(as_of=time).num_rows == 1 or pytest.fail("another version"),
            lambda _: result.read().to_pylist() == [{"n": 0}] or pytest.fail("another result"),
            turns=1,
        )
        result.close()
        rows = {row["id"]: row["n"] for row in orders.read().to_pylist()}
    assert rows == dict.fromkeys(range(THREADS), 1) | {100: 2 * THREADS}


def test_threads_share_a_client_and_its_handles(url: str) -> None:
    metrics, clock = StoreMetrics(), Clock()
    with PersistClient.open(url) as client:
        shard = client.new_shard_id()
        typed = client.create_or_load("typed", Text().schema)
        writer = client.writer(shard, SCHEMA, purpose="test")
        writer.compare_and_append([{"k": 0, "v": "a"}], 0, 1)
        reader = client.reader(shard, purpose="test")
        snapshot = reader.snapshot(0)
        hold = client.critical_since(shard, purpose="hold")
        lock = client.exclusive("me", purpose="test")
        typed_writer = TypedWriter(client, typed, Text(), purpose="test")
        typed_reader = TypedReader(client, typed, Text(), purpose="test")
        prepared = writer.prepare_append([{"k": 1, "v": "b"}], 1, 2)
        committed: list[int] = []

        def commit_once(number: int) -> None:
            try:
                client.multi_write([prepared])
                committed.append(number)
            except holdfast.BadInput:
                pass  # another thread has committed it, or does

        together(commit_once)
        assert len(committed) == 1

        def append(to: object, rows: Callable[[int], object]) -> Callable[[int], None]:
            def act(number: int) -> None:
                while True:
                    upper = to.upper()
                    try:
                        return to.compare_and_append(rows(number), upper, upper + 1)
                    except holdfast.UpperMismatch:
                        continue

            return act

        together(
            append(writer, lambda number: [{"k": number + 10, "v": "x"}]),
            append(typed_writer, lambda number: [TypedUpdate(str(number), "x")]),
            lambda _: sum(len(batch) for batch in snapshot) == 1 or pytest.fail("another snapshot"),
            lambda _: reader.snapshot(reader.upper() - 1).to_table(),
            lambda _: hold.since,
            lambda _: lock.reentrance_id,
            lambda _: metrics.measure("act", clock.wall_ms),
            lambda _: client.shards(),
        )
        assert reader.snapshot(writer.upper() - 1).to_table().num_rows == 2 * THREADS + 2
        assert len(list(typed_reader.snapshot(typed_writer.upper() - 1))) == 2 * THREADS
        assert metrics.snapshot()["act"].calls == 2 * THREADS
        together(lambda _: list(typed_reader.snapshot(typed_writer.upper() - 1)))
        lock.close()


def test_threads_share_a_controller_and_its_handles(url: str) -> None:
    with PersistClient.open(url) as client:
        controller = StorageController(client)
        controller.create_collection(CollectionSpec("c", "flights", SCHEMA, shards=2))
        source = controller.renditions.create("flights", shards=1, recipe=Recipe.SOURCE).id
        writer = controller.writer("flights", purpose="test")
        writer.append([{"k": 0, "v": "a"}], 0, 1)
        reader = controller.reader("flights", purpose="test")
        snapshot = reader.snapshot(0)
        fed = controller.rendition_writer("flights", source, purpose="test")
        twins = [controller.writer("flights", purpose="twin", replicated=True)]
        fed_twin = controller.rendition_writer("flights", source, purpose="twin", replicated=True)
        hold = controller.hold("flights", "test")
        right = controller.acquire_write("flights", "test")

        def append(number: int) -> None:
            while True:
                upper = writer.upper()
                try:
                    return writer.append([{"k": number + 10, "v": "x"}], upper, upper + 1)
                except holdfast.UpperMismatch:
                    continue

        def feed(to: object) -> Callable[[int], None]:
            def act(number: int) -> None:
                with contextlib.suppress(holdfast.UpperMismatch):
                    to.append([{"k": 1, "v": "x", "_time": 0, "_diff": 1}], 0, 1)

            return act

        together(
            append,
            feed(fed),
            feed(fed_twin),
            lambda _: twins[0].append([{"k": 0, "v": "a"}], 0, 1),
            lambda _: snapshot.to_table().num_rows == 1 or pytest.fail("another snapshot"),
            lambda _: reader.snapshot(reader.upper() - 1).to_table(),
            lambda _: controller.list_collections(),
            lambda _: controller.renditions.view(controller.describe("flights")),
            lambda _: hold.since,
            lambda _: right.purpose,
        )
        assert reader.snapshot(writer.upper() - 1).to_table().num_rows == 2 * THREADS + 1


@pytest.mark.parametrize("place", ["persist", "linked", "shadow"])
def test_threads_share_a_catalog(url: str, place: str, tmp_path: object) -> None:
    with PersistClient.open(url) as client:
        persist, stash = persist_catalog(client, ORG), stash_catalog(f"sqlite://{tmp_path}/stash")
        made = {
            "persist": lambda: persist,
            "linked": lambda: linked_catalog(stash, persist),
            "shadow": lambda: shadow_catalog(persist, stash),
        }[place]()
        with made.open(OpenMode.WRITABLE, **WHO) as catalog, made.open(OpenMode.READ_ONLY) as reader:
            together(
                lambda number: catalog.set_config(f"key {number}", number),
                lambda _: list(catalog.objects(CONFIGS)),
                lambda _: (reader.sync(), list(reader.objects(CONFIGS))),
                lambda _: made.is_initialized(),
            )
            keys = {found.key.key for found in catalog.objects(CONFIGS)}
            assert keys >= {f"key {number}" for number in range(2 * THREADS)}


def test_threads_share_a_stash(tmp_path: object) -> None:
    stash: Stash = open_stash(f"sqlite://{tmp_path}/stash", create=True)
    together(lambda _: stash.frontiers(), lambda _: stash.holds())
    stash.close()
