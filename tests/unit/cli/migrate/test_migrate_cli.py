"""`holdfast migrate`, and `holdfast catalog` on a linked catalog: output, effects and refusals."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.catalog.move.attempt import Verify
from holdfast.catalog.move.linked import LinkedCatalog, linked_catalog
from holdfast.catalog.move.migration import BackendMigration
from holdfast.catalog.move.truth import STEPS, Backend, Strategy
from holdfast.catalog.objects.codec import Row, RowUpdate
from holdfast.catalog.objects.registry import SETTINGS
from holdfast.cli import main
from unit.cli.catalogs import PersistPlace, Place, StashPlace, make_place

EDIT = ("edit", "settings", '{"name": "n"}')
SECRET = "wonderland"


class Linked:
    """A stash and a catalog on persist, each by itself and together."""

    def __init__(self, stash: Place, persist: Place) -> None:
        self.stash, self.persist = stash, persist
        self.options = (*stash.options, *persist.options)

    def migrate(self, command: str, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["migrate", command, *self.options, *arguments])

    def catalog(self, command: str, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["catalog", command, *self.options, *arguments])

    def status(self) -> dict[str, Any]:
        result = self.migrate("status", "--json")
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    def stored(self) -> Mapping[str, Any]:
        """All that both keep, but for when it was locked."""
        kept = {f"stash {name}": value for name, value in self.stash.stored().items()}
        return kept | {f"persist {name}": value for name, value in self.persist.stored().items()}

    def library(self) -> LinkedCatalog:
        return linked_catalog(self.stash.openable(), self.persist.openable())


@pytest.fixture
def linked(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Linked]:
    """A stash with a catalog, and persist without one."""
    for name in ("stash", "persist"):
        (tmp_path / name).mkdir()
    stash = make_place("stash in a file", tmp_path / "stash", request)
    persist = make_place("persist in files", tmp_path / "persist", request)
    assert stash.run("init").exit_code == 0
    yield Linked(stash, persist)
    persist.close()


def alone(place: Place, command: str, *arguments: str) -> Result:
    """A command of `holdfast migrate` with the options of one store."""
    return CliRunner().invoke(main, ["migrate", command, *place.options, *arguments])


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(result: Result, code: int, *words: str) -> None:
    """One line that says what is wrong, a hint at most, and no traceback."""
    assert result.exit_code == code, result.output
    lines = [line for line in result.stderr.splitlines() if not line.startswith(("fencing ", "warning: "))]
    assert lines[0].startswith("holdfast: ")
    assert len(lines) <= 2
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize("strategy", Strategy)
def test_there_and_back_with_what_was_written_between(linked: Linked, strategy: Strategy) -> None:
    option = strategy.name.lower().replace("_", "-")
    steps = [str(step) for step in STEPS[strategy, Backend.PERSIST]]
    before = linked.stored()
    planned = ok(linked.migrate("plan", "--id", "m", "--target", "persist", "--strategy", option))
    assert planned.index("not linked yet") < planned.index("steps")
    assert [line.strip() for line in planned.splitlines()[-len(steps) :]] == steps
    assert linked.stored() == before
    done = ok(linked.migrate("run", "--id", "m", "--target", "persist", "--strategy", option))
    shown = [line.strip().partition("  (")[0] for line in done.splitlines()]
    assert shown[1:-1] == steps
    assert shown[-1].startswith("migration m is done: the source of truth is Persist (s")
    again = ok(linked.migrate("run", "--id", "m", "--target", "persist"))
    assert again.startswith("migration m is already done; the source of truth is Persist")
    ok(linked.catalog(*EDIT, '{"value": "on persist"}'))
    planned = ok(linked.migrate("plan", "--id", "m", "--rollback"))
    assert planned.startswith("migration m: Persist (s")
    back = ok(linked.migrate("rollback", "--id", "m", "--verify", "none"))
    assert "migration m is rolled back: the source of truth is Stash (/" in back
    assert '"on persist"' in ok(linked.catalog("dump"))
    assert '"on persist"' in linked.stash.dump()
    found = linked.status()
    assert (found["linked"], found["sourceOfTruth"], found["strategy"]) == (True, "Stash", option)
    assert (found["running"], found["conflict"], found["migrations"]) == (None, None, {"m": "rolled back"})
    assert found["stash"]["epoch"] == found["persist"]["epoch"] == int(ok(linked.catalog("epoch")))
    again = ok(linked.migrate("run", "--id", "m", "--target", "persist"))
    assert again.startswith("migration m is already rolled back; the source of truth is Stash")


def test_a_target_that_the_migration_did_not_have_burns_nothing(linked: Linked) -> None:
    ok(linked.migrate("run", "--id", "m", "--target", "persist"))
    before = linked.stored()
    for command in ("plan", "run"):
        asked = linked.migrate(command, "--id", "m", "--target", "stash")
        refused(asked, 4, "migration m was begun with target Persist, not Stash: it is done", "with a new id")
    asked = linked.migrate("rollback", "--id", "m", "--target", "stash")
    assert asked.exit_code == 2
    assert linked.stored() == before
    assert "migration m is rolled back: the source of truth is Stash" in ok(
        linked.migrate("rollback", "--id", "m")
    )
    assert ok(linked.migrate("rollback", "--id", "m")).startswith("migration m is already rolled back")


def test_a_migration_to_where_the_catalog_is(linked: Linked) -> None:
    planned = ok(linked.migrate("plan", "--id", "m", "--target", "stash"))
    assert any(
        line.startswith("truth       Stash (") and line.endswith("already there, nothing is moved")
        for line in planned.splitlines()
    )
    done = ok(linked.migrate("run", "--id", "m", "--target", "stash")).splitlines()
    assert done[1].startswith("the catalog is already in Stash (")
    assert done[1].endswith("): nothing is moved")
    assert done[-1].startswith("migration m is done: the source of truth is Stash (")
    refused(
        linked.migrate("run", "--id", "m", "--target", "persist"), 4, "begun with target Stash, not Persist"
    )


def test_status_for_people(linked: Linked) -> None:
    first = ok(linked.migrate("status"))
    assert first.splitlines()[:2] == ["truth       Stash (once they are linked)", "link        not linked"]
    ok(linked.migrate("run", "--id", "a", "--target", "persist"))
    with BackendMigration(
        linked.library(), migration_id="b", target=Backend.STASH, verify=Verify.NONE, holder="somebody"
    ) as running:
        running.advance()
    shown = ok(linked.migrate("status")).splitlines()
    assert shown[:2] == ["truth       Persist", "link        one-tombstone"]
    assert shown[2].startswith(
        "running     b, running to Stash (last: somebody); others can't write for 10 min"
    )
    assert shown[-3:] == ["migrations", "  a  done, target Persist", "  b  running, target Stash"]
    assert any(line.startswith("tombstone   true ") for line in shown)
    # It keeps out whoever isn't it, and is resumed.
    refused(linked.catalog(*EDIT, '{"value": "1"}', "--yes"), 4, "migration b of the catalog is in progress")
    refused(linked.migrate("run", "--id", "c", "--target", "persist"), 4, "migration b of this catalog")
    assert "migration b is done" in ok(linked.migrate("run", "--id", "b", "--target", "stash"))


@pytest.mark.parametrize(
    ("command", "code", "word"),
    [
        (["run", "--id", "a b", "--target", "persist"], 2, "migration id 'a b' is not valid"),
        (["run", "--id", "m", "--target", "moon"], 2, "'moon' is not one of 'stash', 'persist'"),
        (["run", "--id", "m", "--target", "persist", "--timeout", "0"], 2, "must be more than 0"),
        (["run", "--id", "m", "--target", "persist", "--timeout", "nan"], 2, "must be more than 0"),
        (["run", "--id", "m", "--target", "persist", "--timeout", "1e300"], 2, "must be more than 0"),
        (
            ["run", "--id", "m", "--target", "persist", "--verify", "shadow"],
            2,
            "--verify shadow needs the process",
        ),
        (["rollback", "--id", "m"], 2, "no migration m of this catalog to roll back"),
        (["rollback", "--id", "a b"], 2, "migration id 'a b' is not valid"),
        (["plan", "--id", "m", "--rollback"], 2, "no migration m of this catalog"),
        (["plan", "--id", "m", "--target", "persist", "--rollback"], 2, "--target can't be given"),
        (["plan", "--id", "m"], 2, "--target is missing"),
        (["link", "--truth", "persist", "--yes"], 1, "there is no catalog in s"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_refused_changes_nothing(linked: Linked, command: list[str], code: int, word: str) -> None:
    before = linked.stored()
    refused(linked.migrate(*command), code, word)
    assert linked.stored() == before


@pytest.mark.parametrize("missing", ["--stash", "--persist", "--organization-id"])
def test_a_migration_needs_both_stores(linked: Linked, missing: str) -> None:
    at = linked.options.index(missing)
    options = [*linked.options[:at], *linked.options[at + 2 :]]
    result = CliRunner().invoke(main, ["migrate", "status", *options])
    refused(result, 2, f"{missing.replace('--persist', '--url')} is missing: a migration needs both stores")


def test_a_source_that_cannot_be_read_is_told_by_the_plan(linked: Linked) -> None:
    store = linked.library().stores.stash
    store.append([RowUpdate(Row(SETTINGS.kind.tag + b"\xff", b""), 1)], store.upper())
    store.close()
    before = linked.stored()
    planned = linked.migrate("plan", "--id", "m", "--target", "persist")
    assert planned.exit_code == 1
    assert "refused     the source of truth can't be read" in planned.stdout
    refused(linked.migrate("run", "--id", "m", "--target", "persist"), 3)
    assert linked.stored() == before


def test_two_catalogs_are_linked_by_naming_the_one_that_counts(linked: Linked) -> None:
    ok(linked.persist.run("init"))
    ok(linked.persist.run(*EDIT, '{"value": "on persist"}', "--yes"))
    before = linked.stored()
    refused(linked.migrate("run", "--id", "m", "--target", "persist"), 2, "each hold a catalog", "hint")
    conflict = linked.migrate("status")
    assert conflict.exit_code == 2
    assert re.match(r"conflict +\S+stash\.sqlite and .* each hold a catalog", conflict.stdout)
    refused(linked.catalog("dump"), 2, "each hold a catalog")
    refused(linked.catalog("epoch"), 2, "each hold a catalog")
    refused(linked.migrate("link", "--truth", "persist"), 2, "needs confirmation")
    assert linked.stored() == before
    told = linked.migrate("link", "--truth", "persist", "--yes")
    assert ok(told).startswith("linked (one-tombstone): the source of truth is Persist (s")
    assert told.stderr.startswith("fencing every process that writes to ")
    assert '"on persist"' in ok(linked.catalog("dump"))
    assert ok(linked.migrate("link", "--truth", "persist")).startswith("already linked (one-tombstone)")
    refused(
        linked.migrate("link", "--truth", "stash"), 2, "already linked, and the source of truth is Persist"
    )


def test_a_store_that_is_looked_at_alone_says_so_when_it_may_not_be_the_catalog(linked: Linked) -> None:
    ok(linked.migrate("run", "--id", "m", "--target", "persist"))
    for place, warned in ((linked.stash, True), (linked.persist, False)):
        for command in ("epoch", "dump"):
            result = place.run(command)
            assert result.exit_code == 0
            assert result.stderr.startswith("warning: ") is warned
        alone = place.run(*EDIT, '{"value": "1"}', "--yes")
        assert alone.exit_code == 4
        assert "linked with another store" in alone.stderr


def test_every_catalog_command_follows_the_truth(linked: Linked, tmp_path: Path) -> None:
    dump = tmp_path / "dump.json"
    ok(linked.catalog("dump", "--target", str(dump)))
    assert ok(linked.catalog("init")).startswith("already initialized")
    ok(linked.migrate("run", "--id", "m", "--target", "persist"))
    for number, command in enumerate(
        (
            (*EDIT, '{"value": "1"}', "--yes"),
            ("delete", "settings", '{"name": "n"}', "--yes"),
            ("load", str(dump), "--yes"),
            ("fence", "--at-least", "40", "--yes"),
        )
    ):
        ok(linked.catalog(*command))
        found = linked.status()
        assert found["sourceOfTruth"] == "Persist"
        assert found["stash"]["epoch"] == found["persist"]["epoch"] > number
    assert ok(linked.catalog("epoch")) == "40\n"
    assert "objects are valid" in ok(linked.catalog("upgrade-check"))


def test_a_link_is_ended_while_the_catalog_is_on_persist(linked: Linked) -> None:
    ok(linked.migrate("run", "--id", "m", "--target", "stash"))
    before = linked.stored()
    refused(
        linked.migrate("detach", "--yes"),
        2,
        "the source of truth is the stash",
        "hint: move the catalog to persist first",
    )
    refused(linked.migrate("detach", "--stash-lost", "--yes"), 2, "--stash can't be given with --stash-lost")
    refused(alone(linked.persist, "detach", "--yes"), 2, "--stash is missing")
    refused(
        alone(linked.persist, "detach", "--stash-lost", "--yes"), 2, "does not record that it is the source"
    )
    assert linked.stored() == before
    ok(linked.migrate("run", "--id", "n", "--target", "persist"))
    before = linked.stored()
    refused(linked.migrate("detach"), 2, "needs confirmation")
    assert linked.stored() == before
    ended = linked.migrate("detach", "--yes")
    assert ok(ended).startswith("detached: the catalog is only on persist, epoch ")
    ok(linked.persist.run(*EDIT, '{"value": "alone"}', "--yes"))
    # Nobody takes what the stash still has for the catalog.
    refused(linked.catalog("dump"), 2, "linked")


def test_a_link_with_a_stash_that_is_lost_is_ended_on_persist(linked: Linked) -> None:
    ok(linked.migrate("run", "--id", "m", "--target", "persist"))
    ok(alone(linked.persist, "detach", "--stash-lost", "--yes"))
    assert ok(linked.persist.run("epoch")) > "0"
    ok(linked.persist.run(*EDIT, '{"value": "alone"}', "--yes"))


def test_no_password_is_shown(linked: Linked) -> None:
    stash = f"postgresql://alice:{SECRET}@127.0.0.1:1/db"
    for command in (["status"], ["run", "--id", "m", "--target", "persist"]):
        options = ["--stash", stash, *linked.persist.options]
        result = CliRunner().invoke(main, ["migrate", *command, *options])
        assert result.exit_code == 3, result.output
        assert SECRET not in result.output + result.stderr


@pytest.mark.postgres
@pytest.mark.s3
def test_on_postgres_and_s3(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """There and back on real servers."""
    persist = make_place("persist on S3 and Postgres", tmp_path, request)
    stash = make_place("stash in Postgres", tmp_path, request)
    assert isinstance(persist, PersistPlace)
    assert isinstance(stash, StashPlace)
    linked = Linked(stash, persist)
    ok(stash.run("init"))
    ok(stash.run(*EDIT, '{"value": "in the stash"}', "--yes"))
    ok(linked.migrate("run", "--id", "m", "--target", "persist"))
    assert '"in the stash"' in persist.dump()
    ok(linked.catalog(*EDIT, '{"value": "on persist"}', "--yes"))
    ok(linked.migrate("rollback", "--id", "m"))
    assert '"on persist"' in stash.dump()
    assert linked.status()["migrations"] == {"m": "rolled back"}
    persist.close()
