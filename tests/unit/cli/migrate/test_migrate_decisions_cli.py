"""`holdfast migrate link|detach --accept-loss` shows a loss, and gives data up only if asked to."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.catalog.move.migration import BackendMigration
from holdfast.catalog.move.truth import Backend
from holdfast.catalog.stores.preamble import read_preamble
from holdfast.cli import main
from holdfast.cli.catalog.place import _shown
from unit.cli.catalogs import make_place
from unit.cli.migrate.test_migrate_cli import EDIT, Linked, alone, ok, refused


@pytest.fixture
def linked(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Linked]:
    """A catalog that was moved from its stash to persist, and written there."""
    for name in ("stash", "persist"):
        (tmp_path / name).mkdir()
    stash = make_place("stash in a file", tmp_path / "stash", request)
    persist = make_place("persist in files", tmp_path / "persist", request)
    made = Linked(stash, persist)
    ok(stash.run("init"))
    ok(stash.run(*EDIT, '{"value": "in the stash"}', "--yes"))
    ok(made.migrate("run", "--id", "m", "--target", "persist", "--verify", "none"))
    ok(made.catalog(*EDIT, '{"value": "on persist"}', "--yes"))
    yield made
    persist.close()


def both_noted(linked: Linked) -> None:
    """What a stash says that was restored from before the move."""
    store = linked.library().stores.stash
    seen = read_preamble(store, store.upper())
    store.append(seen.configured({"truth": 1, "tombstone": None}), seen.upper)
    store.close()


def test_against_what_the_stores_tell(linked: Linked) -> None:
    before = linked.stored()
    shown = linked.migrate("link", "--truth", "stash", "--yes")
    refused(
        shown, 2, "already linked, and the source of truth is Persist (", "--accept-loss decides for Stash"
    )
    assert "fencing" not in shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("truth       Persist (")
    assert lines[1].startswith("to keep     Stash (")
    assert lines[2].startswith("to give up  Persist (")
    found = linked.status()
    for fact in ("upper", "epoch"):
        (line,) = (line.split() for line in lines if line.startswith(fact))
        assert line == [fact, str(found["stash"][fact]), str(found["persist"][fact])]
    (contents,) = (line for line in lines if line.startswith("contents"))
    assert contents.count(" rows, ") == 2
    refused(linked.migrate("link", "--truth", "stash", "--accept-loss"), 2, "a decision needs confirmation")
    assert linked.stored() == before
    done = linked.migrate("link", "--truth", "stash", "--accept-loss", "--yes")
    assert ok(done).splitlines()[-1].startswith("decided (one-tombstone): the source of truth is Stash (")
    assert done.stderr.startswith("fencing every process that writes to ")
    assert "has is given up" in done.stderr
    assert '"in the stash"' in ok(linked.catalog("dump"))
    before = linked.stored()
    again = ok(linked.migrate("link", "--truth", "stash", "--accept-loss"))
    assert again.startswith("already linked (one-tombstone): the source of truth is stash (")
    assert linked.stored() == before


@pytest.mark.parametrize("truth", Backend, ids=lambda truth: truth.value)
def test_where_nothing_tells_it(linked: Linked, truth: Backend) -> None:
    both_noted(linked)
    before = linked.stored()
    refused(linked.catalog("dump"), 2, "disagree about the source of truth", "holdfast migrate link --truth")
    name = truth.value.lower()
    shown = linked.migrate("link", "--truth", name)
    refused(shown, 2, "disagree about the source of truth", f"--accept-loss decides for {truth.value}")
    assert shown.stdout.startswith("truth       unknown: ")
    assert linked.stored() == before
    ok(linked.migrate("link", "--truth", name, "--accept-loss", "--yes"))
    kept = '"in the stash"' if truth is Backend.STASH else '"on persist"'
    assert kept in ok(linked.catalog("dump"))
    found = linked.status()
    assert (found["sourceOfTruth"], found["conflict"]) == (truth.value, None)
    assert found["stash"]["epoch"] == found["persist"]["epoch"]


def test_the_loss_of_a_stash_that_had_the_catalog(linked: Linked) -> None:
    ok(linked.migrate("rollback", "--id", "m", "--verify", "none"))
    ok(linked.catalog(*EDIT, '{"value": "lost"}', "--yes"))
    before = linked.stored()
    shown = alone(linked.persist, "detach", "--stash-lost", "--yes")
    refused(shown, 2, "does not record that it is the source of truth", "--accept-loss gives up")
    assert "warning" not in shown.stderr
    assert "to keep     Persist (s" in shown.stdout
    assert " in blob folder " in shown.stdout
    assert " rows, " in shown.stdout
    assert "fencing" not in shown.stderr
    refused(alone(linked.persist, "detach", "--stash-lost", "--accept-loss"), 2, "needs confirmation")
    refused(
        linked.migrate("detach", "--accept-loss", "--yes"),
        2,
        "--accept-loss can be used only with --stash-lost",
    )
    assert linked.stored() == before
    done = alone(linked.persist, "detach", "--stash-lost", "--accept-loss", "--yes")
    assert ok(done).splitlines()[-1].startswith("detached: the catalog is only on persist, epoch ")
    assert '"on persist"' in linked.persist.dump()
    ok(linked.persist.run(*EDIT, '{"value": "afterwards"}', "--yes"))


def test_a_migration_that_is_running_is_given_up(linked: Linked) -> None:
    for command, word in ((["--id", "x"], "there is no migration x"), (["--id", "a b"], "is not valid")):
        refused(linked.migrate("abandon", *command, "--yes"), 2, word)
    assert "migration m is already done; the source of truth is Persist (" in ok(
        linked.migrate("abandon", "--id", "m")
    )
    running = {"migration_id": "n", "target": Backend.STASH, "holder": "somebody", "timeout_s": 3600.0}
    with BackendMigration(linked.library(), **running) as moving:
        for _ in range(3):
            moving.advance()
    before = linked.stored()
    shut_out = linked.catalog(*EDIT, '{"value": "1"}', "--yes")
    refused(shut_out, 4, "migration n of the catalog is in progress (somebody), until ", " UTC at the latest")
    assert "fencing" not in shut_out.stderr
    refused(linked.migrate("abandon", "--id", "n"), 2, "giving it up needs confirmation")
    assert linked.stored() == before
    done = linked.migrate("abandon", "--id", "n", "--yes")
    assert ok(done).startswith("migration n was undone: the source of truth is Persist (s")
    assert "somebody ran the migration last" in done.stderr
    assert linked.status()["migrations"] == {"m": "done"}
    ok(linked.catalog(*EDIT, '{"value": "1"}', "--yes"))


def test_in_an_emergency_the_stash_is_used_alone(linked: Linked, tmp_path: Path) -> None:
    stash = linked.stash
    for command in (["dump"], ["epoch"], [*EDIT, '{"value": "1"}', "--yes"], ["fence", "--at-least", "90"]):
        before = linked.stored()
        result = stash.run(*command, "--emergency")
        refused(result, 4, "the catalog is not in ", "it was moved to persist")
        assert "fencing" not in result.stderr
        assert linked.stored() == before
    refused(
        linked.persist.run("epoch", "--emergency"), 2, "--emergency is for a stash", "give only --stash URL"
    )
    refused(linked.catalog("epoch", "--emergency"), 2, "--emergency is for a stash")
    ok(linked.migrate("rollback", "--id", "m", "--verify", "none"))
    refused(stash.run(*EDIT, '{"value": "1"}', "--yes"), 4, "linked with another store")
    edited = stash.run(*EDIT, '{"value": "in an emergency"}', "--yes", "--emergency")
    assert "replaced" in ok(edited)
    assert edited.stderr.startswith("fencing every process that writes to catalog ")
    assert '"in an emergency"' in ok(stash.run("dump", "--emergency"))
    assert '"in an emergency"' in ok(linked.catalog("dump"))
    nowhere = ["catalog", "dump", "--stash", f"sqlite://{tmp_path}/other.sqlite", "--emergency"]
    refused(CliRunner().invoke(main, nowhere), 4, "is empty")


def test_two_empty_stores_have_no_truth(tmp_path: Path) -> None:
    organization = "11111111-2222-3333-4444-555555555555"
    options = ["--stash", f"sqlite://{tmp_path}/s", "--persist", f"file://{tmp_path}/p"]
    command = ["migrate", "status", *options, "--organization-id", organization]
    shown = ok(CliRunner().invoke(main, command))
    assert shown.splitlines()[:2] == [
        "truth       none: neither store has a catalog",
        "link        not linked",
    ]
    assert f"in file://{tmp_path}/p, which doesn't exist yet" in shown
    assert json.loads(ok(CliRunner().invoke(main, [*command, "--json"])))["sourceOfTruth"] is None
    assert not list(tmp_path.iterdir())


def test_a_location_that_is_not_there_yet_is_called_what_the_user_calls_it(tmp_path: Path) -> None:
    secret = "s3://somebody:secret@bucket/prefix?region=x"
    assert _shown(secret) == "s3://bucket/prefix"
    organization = "11111111-2222-3333-4444-555555555555"
    stash = ["--stash", f"sqlite://{tmp_path}/s"]
    options = [*stash, "--persist", f"file://{tmp_path}/p", "--organization-id", organization]
    planned = ["migrate", "plan", "--id", "m", "--target", "persist", *options]
    where = f"in file://{tmp_path}/p, which doesn't exist yet"
    refused(CliRunner().invoke(main, planned), 1, f"{where} is not initialized")
    ok(CliRunner().invoke(main, ["catalog", "init", *stash]))
    for command in (planned, ["migrate", "run", *planned[2:]]):
        told = ok(CliRunner().invoke(main, command))
        assert where in told
        assert "memory" not in told
    assert told.splitlines()[-1].endswith(f" in blob folder {tmp_path}/p/blob)")


def test_a_decision_for_nothing_is_refused(linked: Linked, tmp_path: Path) -> None:
    options = ["--stash", f"sqlite://{tmp_path}/other.sqlite", *linked.persist.options]
    before = linked.stored()
    result = CliRunner().invoke(
        main, ["migrate", "link", *options, "--truth", "stash", "--accept-loss", "--yes"]
    )
    refused(result, 1, "there is no catalog in ", "name the store that has the catalog")
    assert linked.stored() == before
    assert not (tmp_path / "other.sqlite").exists()
