"""How `kubectl holdfast` shows names, objects, errors and secrets, without a cluster."""

import json
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from holdfast.errors import BadInput
from holdfast_operator.api.names import Kind
from holdfast_operator.kubectl import main, names
from holdfast_operator.kubectl.cluster import (
    Cluster,
    Failed,
    NoCrds,
    NoSuchObject,
    NotPermitted,
    Unreachable,
    failure,
)
from holdfast_operator.kubectl.collections import (
    compaction_outcome,
    handover_outcome,
    handover_to,
    snapshot_body,
    snapshot_outcome,
)
from holdfast_operator.kubectl.connection_command import command
from holdfast_operator.kubectl.migrate_command import check, migration, outcome
from holdfast_operator.kubectl.picture import lag, moment, remarks, state_of
from holdfast_operator.kubectl.redaction import Redactor
from holdfast_operator.kubectl.report import Bundle, packed, redacted
from holdfast_operator.kubectl.restore_command import catalog, snapshot_of
from holdfast_operator.kubectl.status_command import details, hold_lines, overview
from holdfast_operator.kubectl.tables import Column, table
from holdfast_operator.kubectl.wait import Done, GivenUp, NotYet, wait

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ROOT = Path(__file__).parents[4]


def thing(kind: str = "Catalog", name: str = "demo", /, **status: Any) -> dict[str, Any]:
    spec = {"organizationId": "o"} if kind == "Catalog" else {"catalogRef": {"name": "demo"}}
    if kind == "StorageCollection":
        spec |= {"database": "holdfast", "schema": "public"}
    if kind == "CatalogMigration":
        spec |= {"target": "Persist"}
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": "shop",
            "generation": 2,
            "creationTimestamp": "2026-01-02T03:00:00Z",
        },
        "spec": spec,
        "status": status,
    }


def marked(ready: str = "True", stalled: str = "False", reason: str = "Available", **more: Any) -> Any:
    def condition(type_: str, status: str) -> dict[str, str]:
        return {"type": type_, "status": status, "reason": reason, "message": f"because {reason}"}

    return {
        "observedGeneration": 2,
        "conditions": [condition("Ready", ready), condition("Stalled", stalled), *more.pop("others", ())],
        **more,
    }


def test_the_command_is_where_kubectl_finds_it() -> None:
    about = tomllib.loads((ROOT / "operator" / "pyproject.toml").read_text())["project"]
    module, _, function = about["scripts"]["kubectl-holdfast"].partition(":")
    assert getattr(import_module(module), function) is main.main


def test_all_commands_explain_themselves() -> None:
    runner = CliRunner()
    for name in main._COMMANDS:
        done = runner.invoke(main._command, [name, "--help"])
        assert done.exit_code == 0
        found = main._command.get_command(click.Context(main._command), name)
        assert found is not None
        assert (found.help or "").strip()
    unknown = runner.invoke(main._command, ["nope"])
    assert unknown.exit_code == 2
    assert unknown.stderr.startswith("kubectl holdfast: No such command 'nope'.\n  hint: ")


def test_it_starts_without_what_takes_long_to_import() -> None:
    modules = [
        f"holdfast_operator.kubectl.{target.partition(':')[0]}" for target, _ in main._COMMANDS.values()
    ]
    heavy = ["kubernetes", "kopf", "pydantic", "pyarrow", "polars", "rich", "yaml", "holdfast.persist"]
    program = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("demo", (None, "demo")),
        ("cat/demo", (Kind.CATALOG, "demo")),
        ("Catalogs/demo", (Kind.CATALOG, "demo")),
        ("catalogs.holdfast.dev/demo", (Kind.CATALOG, "demo")),
        ("coll/a", (Kind.STORAGE_COLLECTION, "a")),
        ("collection/a", (Kind.STORAGE_COLLECTION, "a")),
        ("migration/a", (Kind.CATALOG_MIGRATION, "a")),
    ],
)
def test_objects_have_the_names_that_kubectl_takes(text: str, wanted: object) -> None:
    assert names.parse(text) == wanted


@pytest.mark.parametrize("text", ["pod/demo", "catalog/", "catalog/a/b", "/demo"])
def test_what_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        names.parse(text)


@pytest.mark.parametrize(
    ("told", "error", "part"),
    [
        ('Error from server (NotFound): catalogs.holdfast.dev "x" not found', NoSuchObject, '"x" not found'),
        ('error: the server doesn\'t have a resource type "catalogs"', NoCrds, "no resources of"),
        (
            'error: resource mapping not found: no matches for kind "CatalogMigration" in version "x/v1"',
            NoCrds,
            "no resources of holdfast.dev",
        ),
        ("Error from server (Forbidden): catalogs is forbidden: User x", NotPermitted, "User x"),
        (
            "The connection to the server localhost:8080 was refused - did you specify the right host?",
            Unreachable,
            "localhost:8080",
        ),
        (
            'E1123 16:03:31.505228   20419 memcache.go:265] "Unhandled Error" err="dial tcp: x"\n' * 5
            + "The connection to the server h:1 was refused - did you specify the right host or port?\n",
            Unreachable,
            "The connection to the server h:1 was refused - did you specify the right host or port?",
        ),
        ('error: context "x" does not exist', Failed, 'context "x" does not exist'),
        ("", Failed, "without a message"),
    ],
)
def test_errors_of_kubectl_get_their_meaning(told: str, error: type[Exception], part: str) -> None:
    found = failure(told)
    assert type(found) is error
    assert part in str(found)
    assert "memcache" not in str(found)
    assert found.exit_code == 2
    assert found.hint or error is Failed or error is NoSuchObject


def test_a_state_is_of_the_spec_that_is_there_now() -> None:
    assert state_of(thing(observedGeneration=-1)).word == "New"
    assert state_of(thing(**marked())).word == "Ready"
    assert state_of(thing(**marked("False", "True", "NameTaken"))).word == "Stalled"
    assert state_of(thing(**marked("False", "False", "Opening"))).word == "Reconciling"
    assert state_of(thing(**marked("False", "False", "Suspended"))).well
    old = thing(**marked())
    old["metadata"]["generation"] = 3
    assert state_of(old).word == "Behind"
    old["metadata"]["deletionTimestamp"] = "2026-01-02T03:00:00Z"
    assert state_of(old).word == "Deleting"


def test_remarks_are_what_a_ready_object_is_not_well_with() -> None:
    bad = {"type": "ConnectionPublished", "status": "False", "reason": "NameTaken", "message": "taken"}
    good = {"type": "ShadowDiverged", "status": "False", "reason": "ShadowInStep", "message": "same"}
    assert remarks(thing(**marked(others=[bad, good]))) == [bad]


def test_times_are_moments_only_where_they_can_be() -> None:
    ms = int(NOW.timestamp() * 1000)
    assert [moment(each) for each in (None, 7, "closed", ms)] == ["-", "7", "closed", "2026-01-02 03:04:05"]
    assert [lag(each, ms) for each in (None, 7, "closed", ms - 3000, ms + 1)] == ["-", "-", "-", "3 s", "0 s"]


def test_a_table_leaves_out_what_does_not_fit_and_what_is_empty() -> None:
    columns = [
        Column("NAME"),
        Column("WIDE", 2),
        Column("MORE", 1),
        Column("EMPTY", 3),
        Column("N", right=True),
    ]
    rows = [["a", "x" * 30, "y" * 10, "-", "1"], ["b" * 5, "", "z", "", "100"]]
    assert list(table(columns, rows, 80)) == [
        f"NAME   {'WIDE':<30}  MORE          N",
        f"a      {'x' * 30}  yyyyyyyyyy    1",
        f"bbbbb  {'':<30}  z           100",
    ]
    assert list(table(columns, rows, 30))[1] == "a      yyyyyyyyyy    1"
    assert list(table(columns, rows, 5))[1] == "a        1"


@pytest.mark.parametrize("width", [80, 140])
def test_a_picture_fits_into_the_terminal(width: int) -> None:
    ms = int(NOW.timestamp() * 1000)
    stalled = marked("False", "True", "SecretNotFound")
    bodies = [
        thing(**marked(epoch=3, sourceOfTruth="Persist", catalogVersion=18, upper=42, since=0)),
        *(thing("Catalog", f"bad-{number}", **stalled) for number in range(6)),
        thing("CatalogMigration", "a-move-with-a-name-that-is-long", **marked(phase="Completed", step="6")),
        thing(
            "StorageCollection",
            "observations-of-the-weather",
            **marked(upper=ms - 5000, since=ms, activeRendition="r1", nextRendition="spec-2", bytes=123456),
        ),
    ]
    lines = list(overview(bodies, NOW, width, everywhere=False))
    assert max(len(click.unstyle(line)) for line in lines) <= width
    text = "\n".join(lines)
    # What is so with many is said once.
    assert text.count("because SecretNotFound") == 1
    assert "and 2 more: " in " ".join(text.split())
    assert "5 s" in text
    for each in bodies:
        shown = [click.unstyle(line) for line in details(each, bodies, NOW, width)]
        assert max(map(len, shown)) <= width
    assert list(overview([], NOW, width, everywhere=True)) == ["No resources of Holdfast here."]
    well = list(overview(bodies[:1], NOW, width, everywhere=False))
    assert well[-1] == "Nothing needs attention."


def test_a_migration_says_only_what_was_asked_for() -> None:
    made = migration("demo", "Persist", verify="shadow", shadow_for="1m", dry_run=True)
    assert made["metadata"] == {"generateName": "demo-to-persist-"}
    assert made["spec"] == {
        "catalogRef": {"name": "demo"},
        "target": "Persist",
        "verify": "Shadow",
        "shadowFor": "1m",
        "dryRun": True,
    }
    assert migration("demo", "Stash", name="move")["metadata"] == {"name": "move"}
    assert migration("demo", "Stash")["spec"] == {"catalogRef": {"name": "demo"}, "target": "Stash"}
    there = thing(sourceOfTruth="Persist")
    with pytest.raises(BadInput, match="has no stash"):
        check(there, "Stash")
    there["spec"]["stash"] = {"url": "sqlite:///x"}
    check(there, "Stash")
    with pytest.raises(GivenUp, match="already"):
        check(there, "Persist")


def test_a_migration_is_done_when_its_own_condition_says_so() -> None:
    def of(type_: str, **spec: Any) -> Done | None:
        condition = {"type": type_, "status": "True", "reason": "x", "message": "x"}
        body = thing("CatalogMigration", "m", **marked(others=[condition], sourceOfTruth="Stash", rows=1200))
        body["spec"] |= spec
        return outcome(body)

    assert of("Completed") == Done("done: the source of truth is Stash; 1,200 rows, -")
    # One that is to go back is not done by having come.
    assert of("Completed", rollback=True) is None
    assert of("RolledBack", rollback=True) is not None
    assert of("Progressing") is None


def test_a_snapshot_is_an_object_whose_place_may_be_that_of_the_schedule() -> None:
    body = thing("StorageCollection", "a")
    with pytest.raises(BadInput, match="has no destination"):
        snapshot_body(body, None, None, None, NOW)
    made = snapshot_body(body, "one", "file:///b/x", 5, NOW, delete_files=True)
    assert (made["kind"], made["metadata"]) == ("CollectionSnapshot", {"name": "one"})
    assert made["spec"] == {
        "collectionRef": {"name": "a"},
        "destination": "file:///b/x",
        "asOf": 5,
        "deletionPolicy": "Delete",
    }
    body["spec"] |= {"snapshotSchedule": {"destination": "file:///s"}}
    made = snapshot_body(body, None, None, None, NOW.replace(microsecond=7_999))
    assert made["metadata"] == {"name": "a-20260102-030405-007"}
    assert made["spec"] == {"collectionRef": {"name": "a"}}
    done = thing("CollectionSnapshot", "one", **marked(location="file:///b/x/2", asOf=7, rows=3))
    assert snapshot_outcome(done) == Done("done: file:///b/x/2 as of 7, 3 rows")
    assert snapshot_outcome(thing("CollectionSnapshot", "one")) is None
    done["spec"] |= {"collectionRef": {"name": "a"}}
    lines = [each.split() for each in details(done, [done], NOW, 120)]
    assert ["location", "file:///b/x/2"] in lines
    assert ["on", "deletion", "Retain", "the", "files"] in lines


def test_a_compaction_is_asked_for_once_by_a_name_and_told_in_a_line() -> None:
    body = thing("StorageCollection", "a")
    body["spec"]["compactionSchedule"] = {"schedule": "@daily"}
    last = {"requestId": "two", "shards": 4, "compacted": 3, "left": 1, "rowsBefore": 12_000, "rows": 9_000}
    body["status"] = marked(
        lastCompaction=last, compactionSchedule={"nextScheduleTime": "2026-01-03T00:00:00Z"}
    )
    text = "3 of 4 shards, 1 compacted by others: 12,000 stored rows are 9,000"
    assert compaction_outcome("two")(body) == Done(f"done: {text}")
    assert compaction_outcome("three")(body) is None
    lines = [each.split() for each in details(body, [body], NOW, 120)]
    assert ["compaction", "two:", *text.split()] in lines
    assert ["compacts", "@daily", "(UTC):", "next", "2026-01-03T00:00:00Z"] in lines
    failed = {"type": "CompactionCompleted", "status": "False", "reason": "CompactionFailed", "message": "no"}
    # An annotation has no generation: what is said of the request before is not taken for the outcome.
    body["status"] = marked(others=[failed], compactionRequest="two")
    assert compaction_outcome("three")(body) is None
    body["status"]["compactionRequest"] = "three"
    with pytest.raises(GivenUp, match="CompactionFailed: no"):
        compaction_outcome("three")(body)
    assert remarks(body) == [failed]


def test_only_a_rendition_that_can_takes_over_and_only_by_hand() -> None:
    renditions = [
        {"id": "r1", "phase": "Active"},
        {"id": "r2", "phase": "CaughtUp"},
        {"id": "r0", "phase": "Dropped"},
    ]
    body = thing("StorageCollection", "a", activeRendition="r1", nextRendition="r2", renditions=renditions)
    with pytest.raises(BadInput, match="WhenCaughtUp"):
        handover_to(body, None)
    body["spec"]["handover"] = {"policy": "Manual"}
    assert (handover_to(body, None), handover_to(body, "r2")) == ("r2", "r2")
    for rendition, error in (("r1", GivenUp), ("r0", GivenUp), ("r9", BadInput)):
        with pytest.raises(error, match=rendition):
            handover_to(body, rendition)
    assert handover_outcome("r2")(body) is None
    body["status"] |= {"activeRendition": "r2", "handover": {"to": "r2", "at": 12}}
    assert handover_outcome("r2")(body) == Done("done: r2 is the active rendition since 12")


def test_what_a_restore_makes() -> None:
    body = thing("StorageCollection", "a", lastSnapshot={"name": "s1", "location": "/s"})
    assert snapshot_of(body, None) == {"snapshotRef": {"name": "s1"}}
    assert snapshot_of(body, "snapshot/s2") == {"snapshotRef": {"name": "s2"}}
    assert snapshot_of(body, "s3://t/u") == {"snapshot": "s3://t/u"}
    assert snapshot_of(body, "/with space/s") == {"snapshot": "file:///with%20space/s"}
    iceberg = thing("StorageCollection", "a", lastSnapshot={"name": "s1", "table": "shop.a.b"})
    with pytest.raises(BadInput, match=r"the Iceberg table shop\.a\.b, which can't be restored"):
        snapshot_of(iceberg, None)
    assert snapshot_of(iceberg, "file:///s") == {"snapshot": "file:///s"}
    body["spec"]["restoreFrom"] = {"snapshotRef": {"name": "s1"}}
    with pytest.raises(GivenUp, match="never restores twice"):
        snapshot_of(body, None)
    other = thing()
    other["spec"]["storage"] = {"url": "file:///b/x"}
    assert catalog("new", None, other, 7, "id")["spec"] == {
        "organizationId": "id",
        "storage": {"url": "file:///b/x"},
        "restoreFrom": {"catalog": {"organizationId": "o", "asOf": 7}},
    }
    assert catalog("new", "s3://b/d", None, None, "id")["spec"] == {
        "organizationId": "id",
        "restoreFrom": {"dump": {"url": "s3://b/d"}},
    }
    with pytest.raises(BadInput, match="in its stash"):
        catalog("new", None, thing(sourceOfTruth="Stash"), None, "id")


def test_the_shown_command_is_one_for_a_shell() -> None:
    data = {
        "HOLDFAST_BLOB_URL": "file:///b/x?endpoint=http://h&region=eu",
        "HOLDFAST_CONSENSUS_URL": "postgresql://h/d",
        "HOLDFAST_ORGANIZATION_ID": "o",
        "HOLDFAST_STASH_URL": "sqlite:///x",
    }
    assert command("dump", data, "--as-of", "3") == (
        "holdfast catalog dump --stash sqlite:///x --persist 'file:///b/x?endpoint=http://h&region=eu' "
        "--consensus postgresql://h/d --organization-id o --as-of 3"
    )


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("postgresql://me:hunter2-a@db/x", "hunter2-a"),
        ("postgresql://me:hun/ter2@db:5432/x", "hun/ter2"),
        ("file:///b/x?endpoint=http%3A%2F%2Fme%3Ahunter2%40h", "hunter2"),
        ("at file:///b/x?aws_secret_access_key=hunter2&region=eu", "hunter2"),
        ("Authorization: Bearer abcdefgh12345678", "abcdefgh12345678"),
        ("password: hunter2", "hunter2"),
        ("postgresql://h/d?options=-c%20x.password%3Dhunter2", "hunter2"),
        ("postgresql://h/d?a=b&options=-c%20x.p%61ssword%3Dhunter2&c=d", "hunter2"),
        ("postgresql://h/d?options=-c%2520x.password%253Dhunter2", "hunter2"),
        ("postgresql://h/d?p%61ssword=hunter2", "hunter2"),
        ('{\\"password\\": \\"hun ter2\\"}', "hun ter2"),
        ("{'api_key': 'hunter2'}", "hunter2"),
        ("run --admin-password hunter2 --listen=x", "hunter2"),
        ("PGPASSWORD=hunter2", "hunter2"),
        ("key AKIAIOSFODNN7EXAMPLE here", "AKIAIOSFODNN7EXAMPLE"),
        ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "K7MDENG"),
        ("ghp_abcdefghijklmnopqrst", "ghp_abcdefghijklmnopqrst"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "eyJzdWIiOiIxIn0"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\nvQIB\n-----END PRIVATE KEY-----", "vQIB"),
    ],
)
def test_what_looks_like_a_secret_is_replaced(text: str, secret: str) -> None:
    redactor = Redactor()
    redactor.learn(text)
    assert secret not in redactor.text(text)
    assert "***" in redactor.text(text)
    assert secret not in json.dumps(redactor.tree({"a": [{"b": text}]}))


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://db:5432/holdfast?sslmode=require",
        "file:///var/lib/holdfast/shop/9c1f0c52-7d3e-4b0a-9a55-0e6b4a1d7c44",
        "Secret 'stores' is not in this namespace; create it or correct spec.storage.credentialsSecretRef",
        "open for writing at epoch 3 of deploy generation 0",
        "image holdfast@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "pod holdfast-operator-7d9f8b6c5-x2k4q on node ip-10-0-0-1.eu-central-1.compute.internal",
        "2026-11-22T11:50:34.321+00:00 holdfast_operator.engine.handler StorageCollection shop/flights",
        "MigrationCompleted: the source of truth was moved to Persist; set spec.rollback to true",
        "s01dc45c0-30a3-aa41-7b1e-4a6d7a5ce8ad in blob folder /var/lib/holdfast/north/blob",
    ],
)
def test_what_support_needs_stays(text: str) -> None:
    redactor = Redactor()
    redactor.learn(text)
    assert redactor.text(text) == text


def test_what_was_secret_once_is_secret_everywhere() -> None:
    body = {
        "metadata": {"managedFields": [{"a": 1}], "annotations": {"team/api-key": "hunter2-note"}},
        "spec": {
            "env": [
                {"name": "PGPASSWORD", "value": "hunter2-env"},
                {"name": "KEPT", "valueFrom": {"secretKeyRef": {"name": "stores", "key": "password"}}},
            ],
            "args": ["--token", "hunter2-flag", "--lease"],
            "credentialsSecretRef": {"name": "stores"},
            "automountServiceAccountToken": True,
            "volumes": [
                {"name": "tls", "secret": {"secretName": "tls-of-the-stores", "items": ["hunter2-item"]}}
            ],
            "stash": "postgresql://postgres@db/x",
        },
    }
    log = "it was hunter2-env, then hunter2-flag and hunter2-note; password: required, as postgres requires"
    bundle = redacted(Bundle({"a.json": [body], "log.txt": log}, {"b": "no: hunter2-env"}))
    (found,) = bundle.files["a.json"]
    assert bundle.files["log.txt"] == "it was ***, then *** and ***; password: ***, as postgres requires"
    assert bundle.missing == {"b": "no: ***"}
    assert found["metadata"] == {"annotations": {"team/api-key": "***"}}
    assert found["spec"] == {
        "env": [{"name": "PGPASSWORD", "value": "***"}, body["spec"]["env"][1]],
        "args": ["--token", "***", "--lease"],
        "credentialsSecretRef": {"name": "stores"},
        "automountServiceAccountToken": True,
        "volumes": [{"name": "tls", "secret": {"secretName": "tls-of-the-stores", "items": ["***"]}}],
        "stash": "postgresql://***@db/x",
    }
    with tarfile.open(fileobj=BytesIO(packed(bundle, NOW))) as archive:
        assert archive.getnames() == [
            f"holdfast-report/{name}" for name in ("index.txt", "a.json", "log.txt")
        ]
        index = archive.extractfile("holdfast-report/index.txt")
        assert index is not None
        assert "  b: no: ***" in index.read().decode()


@pytest.fixture
def fake_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Stands for kubectl: says one answer after the other, the last one again and again."""
    script, state = tmp_path / "kubectl", tmp_path / "count"
    monkeypatch.setenv("KUBECTL", str(script))

    def answers(*bodies: dict[str, Any]) -> None:
        for number, body in enumerate(bodies):
            (tmp_path / f"answer-{number}").write_text(json.dumps(body))
        script.write_text(
            "#!/bin/sh\n"
            f"n=$(cat {state} 2>/dev/null || echo 0)\n"
            f"cat {tmp_path}/answer-$n\n"
            f"[ $n -ge {len(bodies) - 1} ] || echo $((n + 1)) > {state}\n"
        )
        script.chmod(0o755)

    return answers


def test_what_was_before_the_request_is_not_its_outcome(
    fake_kubectl: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    stalled = {**marked("False", "True", "NameTaken"), "observedGeneration": 1, "activeRendition": "r2"}
    done = marked(activeRendition="r2")
    fake_kubectl(thing("StorageCollection", "a", **stalled), thing("StorageCollection", "a", **done))
    asked = thing("StorageCollection", "a")
    found = wait(Cluster(), asked, handover_outcome("r2"), seconds=60, told=lambda body: state_of(body).word)
    assert found["status"] == done
    told = capsys.readouterr()
    assert told.out == ""
    said = [line[10:] for line in told.err.splitlines()]
    assert said == ["waiting for the operator to see it", "Ready", "done: r2 is the active rendition"]


def test_a_wait_ends_where_somebody_has_to_act_or_the_time_is_over(
    fake_kubectl: Callable[..., None],
) -> None:
    asked = thing("StorageCollection", "a")

    def waited() -> None:
        wait(Cluster(), asked, handover_outcome("r2"), seconds=0.01, told=lambda body: state_of(body).word)

    fake_kubectl(thing("StorageCollection", "a", **marked("False", "True", "NameTaken")))
    with pytest.raises(GivenUp, match="collection/a: NameTaken: because NameTaken"):
        waited()
    # That one goes by itself.
    fake_kubectl(thing("StorageCollection", "a", **marked("False", "True", "StoreUnreachable")))
    with pytest.raises(NotYet, match="not done after 0 s: Stalled"):
        waited()


def test_without_kubectl_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECTL", "no-such-kubectl")
    done = CliRunner().invoke(main._command, ["status"])
    assert done.exit_code == 2
    assert done.stderr.splitlines() == [
        "kubectl holdfast: kubectl is not on PATH",
        "  hint: the plugin needs kubectl; $KUBECTL can name another command",
    ]


FOR_REPORTS = r"""#!/bin/sh
echo "$*" >> {folder}/asked
case "$*" in
  logs*--previous*) echo 'it ended with password="hunter2-before"' ;;
  logs*) echo 'reading postgresql://me:hunter2-log@db/x'; echo 'then hunter2-log and hunter2-args' ;;
  "get --raw"*) echo 'holdfast_leader 1.0' ;;
  "get pods"*component=operator*) cat {folder}/pods ;;
  "get pods"*job-id*) cat {folder}/drivers ;;
  "get deployments"*) cat {folder}/deployments ;;
  "get lease"*) echo 'Error from server (Forbidden): leases "op" is forbidden: hunter2-log' >&2; exit 1 ;;
  version*) echo '{{"clientVersion": {{"gitVersion": "v1"}}}}' ;;
  *) echo '{{"items": []}}' ;;
esac
"""


def test_a_report_reads_logs_and_metrics_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"helm.sh/chart": "holdfast-operator-0.1.0", "app.kubernetes.io/instance": "op"}
    metadata = {"namespace": "holdfast", "labels": labels}
    pod = {
        "metadata": {**metadata, "name": "op-1"},
        "spec": {"containers": [{"args": ["--store-password=hunter2-args"]}]},
        "status": {"containerStatuses": [{"restartCount": 1}]},
    }
    (tmp_path / "pods").write_text(json.dumps({"items": [pod]}))
    driver = {"metadata": {"namespace": "shop", "name": "flights-1"}, "status": {}}
    (tmp_path / "drivers").write_text(json.dumps({"items": [driver]}))
    others = {"metadata": {"name": "web", "namespace": "x", "labels": {"helm.sh/chart": "web-1"}}}
    ours = {"metadata": {**metadata, "name": "op"}}
    (tmp_path / "deployments").write_text(json.dumps({"items": [others, ours]}))
    script = tmp_path / "kubectl"
    script.write_text(FOR_REPORTS.format(folder=tmp_path))
    script.chmod(0o755)
    monkeypatch.setenv("KUBECTL", str(script))
    file = tmp_path / "b.tar.gz"
    done = CliRunner().invoke(main._command, ["report", "-A", "--lines", "7", "-o", str(file)])
    assert done.exit_code == 0, done.output
    with tarfile.open(file) as archive:
        texts = {
            each.name.removeprefix("holdfast-report/"): (archive.extractfile(each) or BytesIO())
            .read()
            .decode()
            for each in archive.getmembers()
        }
    assert texts["operator/holdfast/op-1/log.txt"].splitlines() == [
        "reading postgresql://***@db/x",
        "then *** and ***",
    ]
    assert texts["operator/holdfast/op-1/log-before.txt"] == 'it ended with password="***"\n'
    assert texts["operator/holdfast/op-1/metrics.txt"] == "holdfast_leader 1.0\n"
    (deployment,) = json.loads(texts["operator/deployments.json"])
    assert deployment["metadata"]["labels"]["helm.sh/chart"] == "holdfast-operator-0.1.0"
    missing = 'operator/holdfast/op/lease.json: leases "op" is forbidden: ***'
    assert missing in texts["index.txt"]
    assert "hunter2" not in "".join(texts.values())
    # Nor is any of it shown, and no Secret was asked for.
    assert "hunter2" not in done.output
    asked = (tmp_path / "asked").read_text().splitlines()
    assert "secret" not in "".join(asked).lower()
    tail = "--all-containers --timestamps --tail=7"
    assert [each for each in asked if each.startswith("logs")] == [
        f"logs op-1 -n holdfast {tail}",
        f"logs op-1 -n holdfast {tail} --previous",
        f"logs flights-1 -n shop {tail}",
    ]
    assert texts["jobs/shop/flights-1/log.txt"] == texts["operator/holdfast/op-1/log.txt"]


@pytest.mark.parametrize(
    ("spec", "told", "line"),
    [
        (
            {},
            {"nextScheduleTime": "2026-01-03T00:00:00Z", "missedRuns": 0},
            "(UTC): next 2026-01-03T00:00:00Z",
        ),
        (
            {"timeZone": "Europe/Berlin"},
            {"nextScheduleTime": "2026-01-03T00:00:00Z", "missedRuns": 2},
            "(Europe/Berlin): next 2026-01-03T00:00:00Z, 2 missed",
        ),
        ({"suspend": True}, {"nextScheduleTime": "2026-01-01T00:00:00Z"}, "(UTC): suspended"),
    ],
)
def test_when_the_next_snapshot_of_a_schedule_is_due(
    spec: dict[str, Any], told: dict[str, Any], line: str
) -> None:
    body = thing("StorageCollection", "a", snapshotSchedule=told)
    body["spec"]["snapshotSchedule"] = {"schedule": "@daily", **spec}
    assert any(
        each.split() == ["schedule", "@daily", *line.split()] for each in details(body, [body], NOW, 120)
    )


def test_holds_that_a_status_leaves_out_are_told_with_the_command_that_shows_them() -> None:
    hold = {"purpose": "report", "durable": False, "since": 9, "renditions": ["r1"]}
    told = {"collectionId": "u1", "holds": [hold] * 50}
    now = datetime(2026, 5, 1, tzinfo=UTC)
    all_shown = list(hold_lines(told, now, 120))
    more = [each.strip() for each in hold_lines({**told, "holdsTotal": 61}, now, 120)][len(all_shown) :]
    assert more == ["... and 11 more: see `holdfast collection holds u1`"]
