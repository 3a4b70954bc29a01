"""Files that are no longer listed are forgotten after a while: one row that counts them replaces bindings."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.collections import Recipe, StorageController
from holdfast.collections.pipeline import UNLISTED
from holdfast.errors import BadInput, SourceStalled
from holdfast.ingest import Ingestion, parse
from holdfast.ingest.following import newest_rows
from holdfast.ingest.kept import offsets, progress
from holdfast.ingest.sources.folder import Folder
from holdfast.ingest.waits import Waits
from holdfast.persist import PersistClient
from unit.collections.stores import Stores
from unit.ingest.pipelines import created, drained, pipeline, rows
from unit.ingest.snapshots import taken

SHORT: dict[str, Any] = {"forgetAfter": "1ms"}
LONG: dict[str, Any] = {"forgetAfter": "1h"}


@pytest.fixture
def client() -> PersistClient:
    client = Stores().open()
    created(client)
    return client


def feeding(client: PersistClient, path: Path, rendition: str = "", **files: Any) -> Ingestion:
    """The pipeline of another process."""
    source = Folder(path, "*", Waits(), whole=False, on_changed="error")
    block = {"path": str(path), **files}
    return pipeline(client, source, rendition, generator=None, files=block, run={"progressInterval": "1ms"})


def fed(client: PersistClient, path: Path, rendition: str = "", **files: Any) -> None:
    """Feed until nothing is new, and one empty step more."""
    ingestion = feeding(client, path, rendition, **files)
    ingestion.step()
    time.sleep(0.01)
    ingestion.step()
    ingestion.close()


def put(path: Path, name: str, *ids: int) -> None:
    (path / name).write_text("".join(f'{{"id": {id_}}}\n' for id_ in ids))


def ids(client: PersistClient) -> list[int]:
    return sorted(id_ for id_, _ in rows(client).elements())


def bound(client: PersistClient, as_of: int | None = None) -> dict[str, tuple[int, int]]:
    """The rows of `offsets`: what is forgotten is one of them."""
    table = offsets(StorageController(client), "orders", as_of)[1]
    return {
        each["source"] if each["source"] == "forgotten" else each["partition"]: (
            each["position"],
            each["total"],
        )
        for each in table.to_pylist()
    }


def missing(client: PersistClient) -> set[str]:
    """The files that are known to be missing."""
    pipeline_ = StorageController(client).describe("orders").holding.pipeline
    assert pipeline_ is not None
    with client.reader(pipeline_.remap, purpose="check") as reader:
        return {each["partition"] for each in newest_rows(reader) if each["source"] == UNLISTED}


def test_what_is_missing_for_long_becomes_one_row(client: PersistClient, tmp_path: Path) -> None:
    for number in range(4):
        put(tmp_path, f"{number}.json", number, number + 10)
    fed(client, tmp_path, **LONG)
    before = offsets(StorageController(client), "orders")[0]
    for number in (0, 1, 2):
        (tmp_path / f"{number}.json").unlink()
    fed(client, tmp_path, **LONG)
    assert missing(client) == {"0.json", "1.json", "2.json"}
    assert len(bound(client)) == 4
    # One that comes back in time is the same file.
    put(tmp_path, "2.json", 2, 12)
    fed(client, tmp_path, onChanged="ignore", **LONG)
    assert missing(client) == {"0.json", "1.json"}
    # Another process knows since when they are missing.
    fed(client, tmp_path, onChanged="ignore", **SHORT)
    size = bound(client)["3.json"]
    assert bound(client) == {"2.json": size, "3.json": size, "forgotten": (2, 4)}
    assert missing(client) == set()
    assert set(bound(client, before)) == {f"{number}.json" for number in range(4)}
    assert ids(client) == [0, 1, 2, 3, 10, 11, 12, 13]
    rendition = StorageController(client).describe("orders").holding
    found = progress(client, rendition)
    assert found is not None
    assert (found.messages, set(dict(found.positions))) == (8, {"2.json", "3.json"})


def test_a_forgotten_file_that_comes_back_is_a_new_one(client: PersistClient, tmp_path: Path) -> None:
    put(tmp_path, "a.json", 1)
    fed(client, tmp_path, **SHORT)
    (tmp_path / "a.json").unlink()
    fed(client, tmp_path, **SHORT)
    assert bound(client) == {"forgotten": (1, 1)}
    found = progress(client, StorageController(client).describe("orders").holding)
    assert found is not None
    assert found.source == f"file://{tmp_path}"
    put(tmp_path, "a.json", 1)
    fed(client, tmp_path, **SHORT)
    assert ids(client) == [1, 1]
    # Another folder is another source, also if all files are forgotten.
    (tmp_path / "a.json").unlink()
    fed(client, tmp_path, **SHORT)
    assert bound(client) == {"forgotten": (2, 2)}
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(SourceStalled, match=f"was fed from file://{tmp_path}, not from file://{other}"):
        drained(feeding(client, other, **SHORT))


def test_nothing_is_forgotten_with_zero(client: PersistClient, tmp_path: Path) -> None:
    put(tmp_path, "a.json", 1)
    fed(client, tmp_path, forgetAfter="0s")
    (tmp_path / "a.json").unlink()
    fed(client, tmp_path, forgetAfter="0s")
    assert set(bound(client)) == {"a.json"}
    assert missing(client) == set()


def other_rendition(client: PersistClient, id_: str) -> StorageController:
    controller = StorageController(client)
    controller.renditions.create("orders", shards=1, recipe=Recipe.SOURCE, pipeline=True, rendition_id=id_)
    return controller


def remap(client: PersistClient, id_: str) -> set[tuple[Any, ...]]:
    """What a rendition has bound and forgotten."""
    pipeline_ = StorageController(client).describe("orders").rendition(id_).pipeline
    assert pipeline_ is not None
    with client.reader(pipeline_.remap, purpose="check") as reader:
        found = newest_rows(reader)
    return {tuple(each.values()) for each in found if each["source"] != UNLISTED}


def test_a_follower_forgets_the_same_at_the_same_time(client: PersistClient, tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path, f"{number}.json", number)
    feed = feeding(client, tmp_path, **SHORT)
    feed.step()
    other_rendition(client, "r2")
    follower = feeding(client, tmp_path, "r2", **SHORT)
    drained(follower)
    (tmp_path / "0.json").unlink()
    for _ in range(3):
        time.sleep(0.01)
        feed.step()
    drained(follower)
    assert remap(client, "r2") == remap(client, "r1")
    assert any("forgotten" in each for each in remap(client, "r2"))
    # One that has read a file, but not up to a common time, forgets it too.
    other_rendition(client, "r3")
    late = feeding(client, tmp_path, "r3", **SHORT)
    with pytest.raises(
        SourceStalled, match="has forgotten 1 files that are no longer listed, with 1 messages"
    ):
        drained(late)
    assert "has forgotten 1 files" in StorageController(client).describe("orders").rendition("r3").suspect


def test_a_follower_that_is_filled_forgets_what_it_has_read(client: PersistClient, tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path, f"{number}.json", number)
    feed = feeding(client, tmp_path, **SHORT)
    feed.step()
    other_rendition(client, "r2")
    block = {"path": str(tmp_path), **SHORT}
    source = Folder(tmp_path, "*", Waits(), whole=False, on_changed="error")
    follower = pipeline(client, source, "r2", generator=None, files=block, batch={"maxBytes": "1"})
    follower.step()
    follower.step()
    follower.step()
    (tmp_path / "0.json").unlink()
    for _ in range(3):
        time.sleep(0.01)
        feed.step()
    drained(follower)
    assert remap(client, "r2") == remap(client, "r1")


@pytest.mark.parametrize("of_snapshot", [True, False])
def test_a_restore_misses_no_file_that_was_forgotten_since(
    client: PersistClient, tmp_path: Path, of_snapshot: bool
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    put(folder, "a.json", 1)
    fed(client, folder, **SHORT)
    source = taken(client, tmp_path / "s")
    put(folder, "b.json", 2)
    fed(client, folder, **SHORT)
    (folder / ("a.json" if of_snapshot else "b.json")).unlink()
    fed(client, folder, **SHORT)
    StorageController(client).restore_collection("orders", source)
    if of_snapshot:
        fed(client, folder, **SHORT)
        fed(client, folder, **SHORT)
        assert ids(client) == [1, 2]
        assert set(bound(client)) == {"b.json", "forgotten"}
        return
    for _ in range(2):
        with pytest.raises(SourceStalled, match="had 1 files that are no longer listed and that rendition"):
            fed(client, folder, **SHORT)
    assert ids(client) == [1]


def test_the_default_is_30_days() -> None:
    spec = parse({"files": {"path": "/x"}, "format": {"json": {}}}).source
    assert spec.forget_after_s == 30 * 86400  # type: ignore[union-attr]
    with pytest.raises(BadInput, match=r"source\.files\.forgetAfter is 'soon', expected a duration"):
        parse({"files": {"path": "/x", "forgetAfter": "soon"}, "format": {"json": {}}})


def test_a_file_that_is_listed_again_is_kept_without_a_new_file(
    client: PersistClient, tmp_path: Path
) -> None:
    for number in range(2):
        put(tmp_path, f"{number}.json", number)
    fed(client, tmp_path, **LONG)
    (tmp_path / "0.json").rename(tmp_path / ".0")
    fed(client, tmp_path, **LONG)
    assert missing(client) == {"0.json"}
    (tmp_path / ".0").rename(tmp_path / "0.json")
    # A process that ends before any progress is due.
    source = Folder(tmp_path, "*", Waits(), whole=False, on_changed="error")
    block = {"path": str(tmp_path), **LONG}
    ingestion = pipeline(client, source, "", generator=None, files=block, run={"progressInterval": "1h"})
    ingestion.step()
    ingestion.close()
    assert missing(client) == set()


def test_files_that_are_forgotten_need_the_order_that_forgot_them(
    client: PersistClient, tmp_path: Path
) -> None:
    def step(*, lexical: bool) -> None:
        source = Folder(tmp_path, "*", Waits(), whole=False, on_changed="error", lexical=lexical)
        block = {"path": str(tmp_path), **SHORT, **({"order": "Lexical"} if lexical else {})}
        run = {"progressInterval": "1ms"}
        ingestion = pipeline(client, source, "", generator=None, files=block, run=run)
        for _ in range(2):
            ingestion.step()
            time.sleep(0.01)
        ingestion.close()

    for number in range(4):
        put(tmp_path, f"{number}.json", number)
        step(lexical=True)
    assert "forgotten" in bound(client)
    with pytest.raises(
        SourceStalled, match=r"read with order Lexical, and those up to [012]\.json are forgotten"
    ):
        step(lexical=False)
    step(lexical=True)
    assert ids(client) == [0, 1, 2, 3]


def test_an_earlier_file_that_a_listing_missed_is_read_with_the_later_one(tmp_path: Path) -> None:
    for number in range(4):
        put(tmp_path, f"{number}.json", number)

    class Missing(Folder):
        looks = 0

        def _names(self) -> Iterator[str]:
            self.looks += 1
            return (each for each in super()._names() if self.looks > 1 or each != "1.json")

    source = Missing(tmp_path, "*", Waits(), whole=False, on_changed="error", lexical=True)
    (tmp_path / "3.json").rename(tmp_path / ".3")
    assert [each.partition for each in source.probe({})] == ["0.json", "1.json", "2.json"]
