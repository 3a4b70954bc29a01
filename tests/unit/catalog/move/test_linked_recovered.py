"""`persist recover` keeps the notes of linked stores: what it lost is a conflict, and what it kept opens."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.catalog import OpenMode, linked_catalog, persist_catalog, stash_catalog
from holdfast.catalog.move.decision import decide, decision
from holdfast.catalog.move.linked import LinkedCatalog
from holdfast.catalog.move.truth import Backend
from holdfast.cli import main
from holdfast.errors import LinkConflict
from holdfast.persist import PersistClient
from testbed.linkedstores import ORG, WHO


def catalog(client: PersistClient, folder: Path) -> LinkedCatalog:
    stash = stash_catalog(f"sqlite://{folder}/stash.sqlite")
    return linked_catalog(stash, persist_catalog(client, ORG), backend=Backend.PERSIST)


def written(folder: Path, *items: str) -> None:
    with (
        PersistClient.open(f"file://{folder}/persist") as client,
        catalog(client, folder).open(OpenMode.WRITABLE, **WHO) as writer,
    ):
        for name in items:
            writer.ensure_item("holdfast", "public", name)


def items(folder: Path) -> set[str]:
    with (
        PersistClient.open(f"file://{folder}/persist") as client,
        catalog(client, folder).open(OpenMode.WRITABLE, **WHO) as opened,
    ):
        return {each.value.name for each in opened.get_items()}


def recovered(folder: Path, *options: str) -> str:
    done = CliRunner().invoke(main, ["persist", "recover", f"file://{folder}/persist", "--yes", *options])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.output


def test_a_log_that_comes_back_whole_opens_as_before(tmp_path: Path) -> None:
    written(tmp_path, "a", "b")
    for part in tmp_path.glob("persist/consensus*"):
        part.unlink()
    assert "recovered" in recovered(tmp_path)
    assert items(tmp_path) == {"a", "b"}


def test_a_log_that_lost_commits_is_a_conflict_until_somebody_decides(tmp_path: Path) -> None:
    written(tmp_path, "a")
    shutil.copytree(tmp_path / "persist", tmp_path / "copy")
    written(tmp_path, "b")
    shutil.rmtree(tmp_path / "persist")
    shutil.move(tmp_path / "copy", tmp_path / "persist")
    recovered(tmp_path, "--restored")
    with PersistClient.open(f"file://{tmp_path}/persist") as client:
        linked = catalog(client, tmp_path)
        for mode in (OpenMode.WRITABLE, OpenMode.READ_ONLY):
            with pytest.raises(LinkConflict, match="restored from an older state") as caught:
                linked.open(mode, **WHO)
            assert "migrate link --truth" in caught.value.hint
        decide(linked, decision(linked, Backend.PERSIST), **WHO)
    written(tmp_path, "c")
    assert items(tmp_path) == {"a", "c"}
