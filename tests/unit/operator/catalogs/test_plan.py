"""What the operator decides about a Catalog, as a table of situations."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from holdfast.catalog import CATALOG_VERSION, MIN_VERSION, Bootstrap
from holdfast.errors import (
    BadInput,
    CatalogOutOfSync,
    CorruptBlob,
    Deprecated,
    FenceRegressed,
    HoldfastError,
    LinkConflict,
    LinkedElsewhere,
    MigrationInProgress,
    NotSourceOfTruth,
    ShardFinalized,
    StoreUnreachable,
    StrategyMismatch,
    VersionTooNew,
)
from holdfast.persist.stores.postgres import PostgresConsensus
from holdfast.persist.stores.s3_errors import unreachable
from holdfast_operator.api.catalog import CatalogSpec
from holdfast_operator.api.names import ConditionType, Kind, Reason
from holdfast_operator.catalogs.claims import new_cache
from holdfast_operator.catalogs.facts import CatalogFacts, CatalogView, Opening, ShadowFacts
from holdfast_operator.catalogs.objects import CreateObject, DeclaredType, KeptObject, ObjectName, ObjectsPlan
from holdfast_operator.catalogs.plan import plan
from holdfast_operator.catalogs.steps import Close, Destroy, GiveUp, KeepObjects, Open, RollOut
from holdfast_operator.engine.deletion import LIMIT, Deletion
from holdfast_operator.engine.failures import settled
from holdfast_operator.engine.health import Phase, health_conditions
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.status_writer import conditions
from holdfast_operator.engine.steps import Decision, Keep, Release, Rest, Rhythm, Settle, stalled
from holdfast_operator.places.credentials import SecretNotFound
from holdfast_operator.places.storage import DumpSource, RefusedLocation, StashLocation, Storage, resolve
from testbed.postgres import PostgresServer

ORGANIZATION = "6f1d7c1e-2b8a-4f5e-9d43-0c5b8f3a7e21"
RHYTHM = Rhythm(unsteady=2.0, steady=60.0)
HERE = Storage(url="file:///data/here")


def spec(**fields: Any) -> CatalogSpec:
    return CatalogSpec.model_validate({"organizationId": ORGANIZATION, **fields})


OPENING = Opening(HERE, ORGANIZATION, 0, "default", (), "me", "operator for Catalog ns/demo")
FACTS = CatalogFacts(ORGANIZATION, "s1", 3, 0, 15, 1, 7, (("items", 2), ("roles", 1)), "me, a test")
FRESH = CatalogView(name="ns/demo", spec=spec(), storage=HERE, holder="me")
OPENED = replace(FRESH, opened=OPENING, facts=FACTS)


def decided(seen: CatalogView) -> Decision:
    return plan(seen, RHYTHM)


def rest(seen: CatalogView) -> Settle:
    step = decided(seen)
    assert isinstance(step, Settle)
    return step


def test_nothing_happens_before_the_finalizer_is_there() -> None:
    assert decided(replace(FRESH, has_finalizer=False)) == Keep()


def test_a_catalog_that_is_not_open_is_opened() -> None:
    assert decided(FRESH) == Open(OPENING)


def test_an_open_catalog_is_ready_and_shows_the_store() -> None:
    step = rest(OPENED)
    assert (step.health.phase, step.health.reason) == (Phase.READY, Reason.AVAILABLE)
    assert step.fields == {
        "organizationId": ORGANIZATION,
        "shardId": "s1",
        "epoch": 3,
        "deployGeneration": 0,
        "holder": "me, a test",
        "sourceOfTruth": "Persist",
        "catalogVersion": 15,
        "since": 1,
        "upper": 7,
        "objectCounts": {"items": 2, "roles": 1},
    }


NO_SECRET = settled(SecretNotFound("keys", "spec.storage.credentialsSecretRef")).health
FOREIGN = RefusedLocation("spec.storage is outside; ask who runs it", Reason.LOCATION_NOT_ALLOWED)


@pytest.mark.parametrize(
    ("seen", "reason", "names"),
    [
        (replace(FRESH, spec=None, problem="spec.x: bad"), Reason.INVALID_SPEC, "spec.x"),
        (replace(FRESH, older_twin="Catalog ns/older"), Reason.DUPLICATE_CATALOG, "ns/older"),
        (replace(FRESH, storage=RefusedLocation("use file:///")), Reason.UNSUPPORTED_STORAGE, "file:///"),
        (replace(FRESH, storage=FOREIGN), Reason.LOCATION_NOT_ALLOWED, "ask who runs it"),
        (
            replace(
                FRESH,
                spec=spec(storage={"url": "file:///x", "credentialsSecretRef": {"name": "keys"}}),
                unusable_secret=NO_SECRET,
            ),
            Reason.SECRET_NOT_FOUND,
            "'keys'",
        ),
    ],
)
def test_what_somebody_has_to_mend_is_stalled_and_named(
    seen: CatalogView, reason: Reason, names: str
) -> None:
    step = rest(seen)
    assert (step.health.phase, step.health.reason) == (Phase.STALLED, reason)
    assert names in step.health.message
    assert step.fields is None


@pytest.mark.parametrize(
    ("policy", "approved", "upgrade"),
    [
        (None, "", True),
        ("Automatic", "", True),
        ("Manual", "", False),
        ("Manual", str(CATALOG_VERSION - 1), False),
        ("Manual", str(CATALOG_VERSION), True),
    ],
)
def test_who_decides_on_an_upgrade(policy: str | None, approved: str, upgrade: bool) -> None:
    asked = spec() if policy is None else spec(upgradePolicy=policy)
    step = decided(replace(FRESH, spec=asked, approved_upgrade=approved))
    assert step == Open(replace(OPENING, upgrade=upgrade))


def test_nobody_minds_the_format_of_what_is_deleted() -> None:
    doomed = spec(upgradePolicy="Manual", deletionPolicy="Delete")
    step = decided(replace(FRESH, spec=doomed, deleting=True))
    assert step == Open(replace(OPENING, existing_only=True))


def test_an_open_catalog_is_opened_anew_when_somebody_asks() -> None:
    asked = replace(OPENED, reopen="2")
    assert decided(asked) == Close()
    assert decided(replace(asked, opened=None, facts=None)) == Open(replace(OPENING, reopen="2"))
    assert isinstance(decided(replace(asked, opened=replace(OPENING, reopen="2"))), Settle)


def test_an_open_catalog_is_opened_anew_with_other_credentials() -> None:
    rotated = replace(OPENED, secrets=2)
    assert decided(rotated) == Close()
    # The store may refuse the handle's credentials, so nothing is known of the catalog.
    assert decided(replace(rotated, facts=None)) == Close()
    assert decided(replace(rotated, opened=None, facts=None)) == Open(replace(OPENING, secrets=2))
    assert isinstance(decided(replace(rotated, opened=replace(OPENING, secrets=2))), Settle)


SHADOWED = spec(
    shadow=True, stash={"url": "postgresql://h/d", "schema": "s", "credentialsSecretRef": {"name": "k"}}
)
STASH = StashLocation("postgresql://h/d", "s", "k")


def test_a_catalog_is_opened_with_its_shadow_and_anew_when_that_changes() -> None:
    assert decided(replace(FRESH, spec=SHADOWED)) == Open(replace(OPENING, stash=STASH, shadow=True))
    assert decided(replace(OPENED, spec=SHADOWED)) == Close()
    shadowed = replace(
        OPENED, opened=replace(OPENING, stash=STASH, shadow=True), facts=replace(FACTS, shadow=ShadowFacts())
    )
    (condition,) = rest(replace(shadowed, spec=SHADOWED)).conditions
    assert (condition.type, condition.status) == (ConditionType.SHADOW_DIVERGED, "False")
    assert decided(shadowed) == Close()


def test_what_a_deletion_leaves_in_a_stash_is_named() -> None:
    doomed = spec(**SHADOWED.model_dump(by_alias=True, exclude={"deletion_policy"}), deletionPolicy="Delete")
    step = decided(replace(FRESH, spec=doomed, deleting=True, void=True))
    assert isinstance(step, Release)
    (note,) = step.notes
    assert note.reason is Reason.DELETION_INCOMPLETE
    assert "postgresql://h/d" in note.message


LINKED = spec(backend="Stash", stash={"url": "sqlite:///a"}, migrationStrategy="TwoTombstones")
IN_TWO = replace(OPENING, stash=StashLocation("sqlite:///a"), backend="Stash", strategy="TwoTombstones")
IN_STASH = replace(OPENED, spec=LINKED, opened=IN_TWO, facts=replace(FACTS, truth="Stash", link="7f"))
MOVE = "CatalogMigration ns/move"


ABANDONED = Deletion(LIMIT, "no answer", asked=True)


def test_a_linked_catalog_shows_where_it_is() -> None:
    assert decided(replace(FRESH, spec=LINKED)) == Open(IN_TWO)
    named = replace(FRESH, spec=LINKED, named_truth="Persist")
    assert decided(named) == Open(replace(IN_TWO, truth="Persist"))
    assert decided(replace(named, named_truth="the old one")) == Open(IN_TWO)
    # It decides once: from then on the stores tell.
    took = rest(replace(IN_STASH, named_truth="Stash"))
    assert (took.fields or {})["handledTruth"] == "Stash"
    assert [note.reason for note in took.notes] == [Reason.TRUTH_TAKEN]
    # The annotation stays, and is told of no more.
    kept = rest(replace(IN_STASH, handled_truth="Stash"))
    assert ((kept.fields or {})["handledTruth"], kept.notes) == ("Stash", ())
    both = rest(replace(IN_STASH, named_truth="Stash", migration=MOVE, in_both=True))
    assert ("handledTruth" in (both.fields or {}), both.notes) == (False, ())
    step = rest(IN_STASH)
    assert step.health.phase is Phase.READY
    assert "open for writing in Stash" in step.health.message
    assert step.fields is not None
    assert (step.fields["sourceOfTruth"], step.fields["link"]) == ("Stash", "7f")
    assert decided(replace(IN_STASH, spec=spec(stash={"url": "sqlite:///a"}))) == Close()


def test_a_migration_has_the_catalog_to_itself() -> None:
    moving = replace(IN_STASH, migration=MOVE)
    assert decided(moving) == Close()
    closed = rest(replace(moving, opened=None, facts=None))
    assert (closed.health.phase, closed.health.reason) == (Phase.RECONCILING, Reason.MIGRATING)
    assert MOVE in closed.health.message
    assert decided(replace(moving, opened=None, facts=None, under_way=True)) == GiveUp()
    # It opened the catalog in both stores, in its own way.
    both = rest(replace(moving, in_both=True, opened=replace(IN_TWO, holder="it", existing_only=True)))
    assert both.health.phase is Phase.READY
    assert MOVE in both.health.message
    # Its credentials have changed, or it is closed: only the migration opens it again.
    assert decided(replace(moving, in_both=True, facts=None)) == Close()
    closed = rest(replace(moving, in_both=True, opened=None, facts=None))
    assert closed.health.reason is Reason.MIGRATING


def test_a_deletion_waits_for_migrations() -> None:
    doomed = replace(FRESH, spec=LINKED, deleting=True, migrations=("move",), dependents=("flights",))
    step = rest(doomed)
    assert step.health.reason is Reason.WAITING_FOR_MIGRATIONS
    assert "move" in step.health.message
    open_yet = replace(doomed, opened=IN_TWO, migration=MOVE)
    assert decided(open_yet) == Close()
    assert isinstance(decided(replace(open_yet, in_both=True)), Settle)
    assert rest(replace(doomed, migrations=())).health.reason is Reason.WAITING_FOR_COLLECTIONS


RESTORED = spec(restoreFrom={"dump": {"url": "s3://b/dump.json"}})
DUMP = DumpSource("s3://b/dump.json")


def test_a_new_catalog_is_restored_and_says_so() -> None:
    asked = replace(FRESH, spec=RESTORED, restore=DUMP)
    assert decided(asked) == Open(replace(OPENING, restore=DUMP))
    step = rest(replace(asked, opened=OPENING, facts=FACTS, restored_from="7 rows of dump s3://b/dump.json"))
    (condition,) = step.conditions
    assert (condition.type, condition.status, condition.reason) == (
        ConditionType.RESTORED,
        "True",
        Reason.RESTORED,
    )
    assert "7 rows of dump s3://b/dump.json" in condition.message
    assert step.fields is not None
    assert step.fields["restoredFrom"] == "7 rows of dump s3://b/dump.json"


def test_what_is_not_restored_says_so_too() -> None:
    step = rest(replace(OPENED, spec=RESTORED, restore=DUMP))
    assert step.health.phase is Phase.READY
    (condition,) = step.conditions
    assert (condition.status, condition.reason) == ("False", Reason.RESTORE_IGNORED)
    assert rest(OPENED).conditions == ()


def test_a_source_that_can_not_be_stalls_a_new_catalog_only() -> None:
    refused = replace(FRESH, spec=RESTORED, restore=RefusedLocation("use file:///"))
    step = rest(refused)
    assert (step.health.phase, step.health.reason) == (Phase.STALLED, Reason.RESTORE_FAILED)
    assert decided(replace(refused, initialized=True)) == Open(OPENING)


def test_what_the_first_open_puts_into_a_catalog() -> None:
    asked = spec(bootstrap={"replicaSizes": ["2", "4"], "systemConfigurations": {"b": "1", "a": "2"}})
    step = decided(replace(FRESH, spec=asked))
    assert isinstance(step, Open)
    assert step.opening.bootstrap == Bootstrap(
        replica_sizes=("2", "4"), system_configurations={"a": "2", "b": "1"}
    )


def test_a_missing_secret_is_looked_for_again() -> None:
    assert rest(replace(FRESH, unusable_secret=NO_SECRET)).retry


def test_suspended_means_closed() -> None:
    suspended = replace(OPENED, spec=spec(suspend=True))
    assert decided(suspended) == Close()
    assert rest(replace(suspended, opened=None, facts=None)).health.phase is Phase.SUSPENDED


def test_what_is_under_way_is_given_up_when_nothing_asks_for_it_any_more() -> None:
    opening = replace(FRESH, under_way=True)
    assert decided(opening) == Open(OPENING)
    for resting in (
        replace(opening, spec=spec(suspend=True)),
        replace(opening, spec=None, problem="spec.x: bad"),
        replace(opening, older_twin="Catalog a/b"),
        replace(opening, deleting=True),
        replace(opening, has_finalizer=False),
        replace(OPENED, under_way=True),
    ):
        assert decided(resting) == GiveUp()
        assert isinstance(decided(replace(resting, under_way=False)), Rest)
    assert isinstance(decided(replace(OPENED, under_way=True, spec=spec(deployGeneration=4))), RollOut)


def test_the_younger_of_two_lets_go() -> None:
    assert decided(replace(OPENED, older_twin="Catalog a/b")) == Close()


def test_another_place_means_opening_anew() -> None:
    seen = replace(OPENED, storage=Storage(url="file:///b"))
    assert decided(seen) == Close()
    again = decided(replace(seen, opened=None, facts=None))
    assert isinstance(again, Open)
    assert again.opening.storage == seen.storage


def test_a_greater_generation_is_rolled_out_from_the_running_one() -> None:
    greater = replace(OPENED, spec=spec(deployGeneration=4))
    assert decided(greater) == RollOut(replace(OPENING, deploy_generation=4))
    assert isinstance(decided(replace(greater, opened=None, facts=None)), Open)
    # Another generation was rolled out already; an API server without our rules gave back a lower one.
    assert isinstance(decided(replace(OPENED, opened=replace(OPENING, deploy_generation=5))), Settle)


WATCHED = replace(FRESH, spec=spec(access="Observed"))
WATCHING = replace(OPENING, observed=True)
SEEN = replace(WATCHED, opened=WATCHING, facts=replace(FACTS, catalog_version=CATALOG_VERSION))


def test_an_observed_catalog_is_only_looked_at() -> None:
    assert decided(WATCHED) == Open(WATCHING)
    step = rest(SEEN)
    assert (step.health.phase, step.health.reason) == (Phase.READY, Reason.AVAILABLE)
    assert "written by me, a test at epoch 3" in step.health.message
    assert step.fields is not None
    assert step.fields["objectCounts"] == {"items": 2, "roles": 1}


@pytest.mark.parametrize(
    ("version", "phase", "reason"),
    [
        (CATALOG_VERSION + 1, Phase.STALLED, Reason.VERSION_TOO_NEW),
        (MIN_VERSION - 1, Phase.STALLED, Reason.DEPRECATED),
        *((old, Phase.RECONCILING, Reason.UPGRADE_PENDING) for old in range(MIN_VERSION, CATALOG_VERSION)),
    ],
)
def test_an_observed_catalog_of_another_version_is_shown_and_not_upgraded(
    version: int, phase: Phase, reason: Reason
) -> None:
    step = rest(replace(SEEN, facts=replace(FACTS, catalog_version=version, object_counts=())))
    assert (step.health.phase, step.health.reason) == (phase, reason)
    assert step.fields is not None
    assert step.fields["catalogVersion"] == version
    assert "objectCounts" not in step.fields


def test_who_writes_may_change() -> None:
    assert decided(replace(SEEN, spec=spec())) == Close()
    assert decided(replace(OPENED, spec=spec(access="Observed"))) == Close()


def test_an_observed_catalog_is_released_and_never_destroyed() -> None:
    asked = spec(access="Observed", deletionPolicy="Delete")
    doomed = replace(SEEN, deleting=True, facts=None, spec=asked, initialized=True)
    assert decided(doomed) == Close()
    assert decided(replace(doomed, opened=None)) == Release()
    assert isinstance(
        decided(replace(doomed, opened=None, dependents=("a",), doomed_dependents=True)), Settle
    )


SHOP = ObjectName(DeclaredType.DATABASE, ("shop",))


def test_a_catalog_is_ready_when_it_has_what_is_declared() -> None:
    declared = spec(objects={"databases": [{"name": "shop"}]})
    behind = replace(
        OPENED, spec=declared, objects=ObjectsPlan(changes=(CreateObject(SHOP, ""),), declared=1)
    )
    assert decided(behind) == KeepObjects({SHOP: ""})
    step = rest(replace(behind, objects=ObjectsPlan(adopted=(SHOP,), declared=1)))
    assert step.health.phase is Phase.READY
    (condition,) = step.conditions
    assert (condition.type, condition.status) == (ConditionType.OBJECTS_IN_STEP, "True")
    assert "stay if you remove them from the spec: database shop" in condition.message


def test_what_is_taken_out_but_used_is_named() -> None:
    kept = ObjectsPlan(kept=(KeptObject(SHOP, ("schema shop.raw",)),))
    step = rest(replace(OPENED, objects=kept))
    assert step.health.phase is Phase.READY
    (condition,) = step.conditions
    assert (condition.status, condition.reason) == ("False", Reason.OBJECTS_KEPT)
    assert "database shop (by schema shop.raw)" in condition.message


def test_a_name_of_the_system_can_not_be_declared() -> None:
    step = rest(replace(OPENED, objects=ObjectsPlan(taken=(SHOP,) * 5, declared=5)))
    assert (step.health.phase, step.health.reason) == (Phase.STALLED, Reason.NAME_TAKEN)
    assert "database shop and 2 more" in step.health.message
    assert step.fields is not None


DELETING = replace(OPENED, deleting=True, facts=None)
DOOMED = replace(DELETING, spec=spec(deletionPolicy="Delete"), initialized=True)


def test_a_deletion_waits_for_the_collections_and_names_them() -> None:
    names = ("a", "b", "c", "d", "e")
    step = rest(replace(DELETING, dependents=names, kept_dependents=names))
    assert (step.health.phase, step.health.reason) == (Phase.RECONCILING, Reason.WAITING_FOR_COLLECTIONS)
    assert step.health.message.endswith("StorageCollections a, b, c and 2 more; delete them")
    some = rest(replace(DELETING, dependents=names, kept_dependents=("b",))).health.message
    assert some.endswith("a, b, c and 2 more; delete b, which nobody has deleted yet")
    none = rest(replace(DELETING, dependents=names)).health.message
    assert none.endswith(
        "a, b, c and 2 more, which are being deleted; their conditions show what they wait for"
    )


def test_retain_needs_no_store() -> None:
    assert decided(DELETING) == Close()
    assert decided(replace(DELETING, opened=None)) == Release()
    assert decided(replace(DELETING, opened=None, spec=None)) == Release()


def test_delete_destroys_first_and_opens_for_it_where_it_must() -> None:
    assert decided(DOOMED) == Destroy()
    closed = replace(DOOMED, opened=None)
    # Whether there is anything the store knows, not the status; and nothing is made only to be destroyed.
    for shown in (True, False):
        assert decided(replace(closed, initialized=shown)) == Open(replace(OPENING, existing_only=True))
    assert decided(replace(closed, void=True)) == Release()
    assert decided(replace(closed, storage=RefusedLocation("use file:///"), initialized=False)) == Release()


def test_delete_leaves_the_store_of_an_older_twin_alone() -> None:
    twin = replace(DOOMED, older_twin="Catalog ns/older")
    assert decided(twin) == Close()
    assert decided(replace(twin, opened=None)) == Release()
    assert isinstance(decided(replace(twin, opened=None, dependents=("a",), doomed_dependents=True)), Settle)


def test_delete_never_gives_up_by_itself() -> None:
    for deletion in (Deletion(LIMIT, "no answer"), Deletion(asked=True)):
        assert isinstance(decided(replace(DOOMED, opened=None, deletion=deletion)), Open)
        assert decided(replace(DOOMED, deletion=deletion)) == Destroy()
    unread = replace(DOOMED, opened=None, spec=None, problem="no such field", asks_to_delete=True)
    assert rest(unread).health.reason is Reason.INVALID_SPEC
    assert decided(replace(unread, initialized=False)) == Release()
    secret = stalled(Reason.SECRET_NOT_FOUND, "there is no Secret")
    assert rest(replace(DOOMED, opened=None, unusable_secret=secret)).health is secret
    # An open catalog needs no Secret.
    assert decided(replace(DOOMED, unusable_secret=secret)) == Destroy()


def test_delete_leaves_what_somebody_abandons_and_says_what_is_left() -> None:
    assert decided(replace(DOOMED, deletion=ABANDONED)) == Close()
    step = decided(replace(DOOMED, opened=None, deletion=ABANDONED))
    assert isinstance(step, Release)
    (note,) = step.notes
    assert (note.reason, note.warning) == (Reason.DELETION_INCOMPLETE, True)
    assert "file:///data/here" in note.message
    assert note.message.endswith("the last attempt to delete failed: no answer")
    doomed_in_two = spec(
        deletionPolicy="Delete", stash={"url": "sqlite:///a"}, migrationStrategy="TwoTombstones"
    )
    linked = decided(replace(DOOMED, spec=doomed_in_two, opened=None, deletion=ABANDONED))
    assert isinstance(linked, Release)
    assert "file:///data/here and in the stash sqlite:///a stays" in linked.notes[0].message
    unknown = decided(replace(DOOMED, opened=None, deletion=ABANDONED, initialized=False))
    assert isinstance(unknown, Release)
    assert [each.reason for each in unknown.notes] == [Reason.DELETION_INCOMPLETE]


def test_what_is_in_a_place_that_is_not_allowed_any_more_waits_for_somebodys_word() -> None:
    away = replace(DOOMED, opened=None, storage=FOREIGN)
    assert rest(away).health.phase is Phase.STALLED
    assert "ask who runs it; what the catalog has in its store can't be" in rest(away).health.message
    step = decided(replace(away, deletion=ABANDONED))
    assert isinstance(step, Release)
    assert [note.reason for note in step.notes] == [Reason.DELETION_INCOMPLETE]


def test_collections_that_are_to_be_dropped_need_their_catalog_open() -> None:
    waiting = replace(DELETING, opened=None, dependents=("a",))
    assert isinstance(decided(waiting), Settle)
    for shown in (True, False):
        step = decided(replace(waiting, doomed_dependents=True, initialized=shown))
        assert isinstance(step, Open)
        assert step.opening.existing_only
    assert isinstance(decided(replace(waiting, doomed_dependents=True, void=True)), Settle)


def test_collections_with_attempts_to_be_ended_need_their_catalog_open_but_no_upgrade() -> None:
    manual = spec(upgradePolicy="Manual")
    waiting = replace(DELETING, opened=None, dependents=("a",), spec=manual, busy_dependents=True)
    step = decided(waiting)
    assert isinstance(step, Open)
    assert (step.opening.existing_only, step.opening.upgrade) == (True, False)
    dropping = decided(replace(waiting, doomed_dependents=True))
    assert isinstance(dropping, Open)
    assert dropping.opening.upgrade
    assert isinstance(decided(replace(waiting, deletion=ABANDONED)), Settle)


def test_nothing_is_done_once_the_finalizer_is_off() -> None:
    assert decided(replace(DOOMED, has_finalizer=False, opened=None)) == Release()


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        ({}, Storage(url=f"file:///volume/ns/{ORGANIZATION}")),
        ({"url": "file:///x"}, Storage(url="file:///x")),
        (
            {"blob": "file:///b", "consensus": "sqlite:///c"},
            Storage(blob="file:///b", consensus="sqlite:///c"),
        ),
    ],
)
def test_where_a_catalog_is(storage: dict[str, str], expected: Storage) -> None:
    assert resolve(spec(storage=storage), "ns", Path("/volume")) == expected


@pytest.mark.parametrize(("storage", "data_dir"), [({"url": "memory://x"}, Path("/v")), ({}, None)])
def test_where_a_catalog_can_not_be(storage: dict[str, str], data_dir: Path | None) -> None:
    refused = resolve(spec(storage=storage), "ns", data_dir)
    assert isinstance(refused, RefusedLocation)
    assert "spec.storage" in refused.message


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StoreUnreachable("down"), Reason.STORE_UNREACHABLE),
        (CorruptBlob("k", "a", "b"), Reason.STORE_INCONSISTENT),
        (FenceRegressed(2, 1), Reason.FENCE_REGRESSED),
        (BadInput("no"), Reason.INVALID_SPEC),
        (CatalogOutOfSync("moved"), Reason.CATALOG_OUT_OF_SYNC),
        (ShardFinalized("ended"), Reason.DATA_DELETED),
        (VersionTooNew("19"), Reason.VERSION_TOO_NEW),
        (Deprecated("9"), Reason.DEPRECATED),
        (LinkConflict("both hold a catalog"), Reason.LINK_CONFLICT),
        (StrategyMismatch("one tombstone"), Reason.STRATEGY_MISMATCH),
        (NotSourceOfTruth("persist", "stash"), Reason.NOT_SOURCE_OF_TRUTH),
        (LinkedElsewhere("a stash"), Reason.STASH_MISSING),
        (MigrationInProgress("m1", "me"), Reason.MIGRATION_IN_PROGRESS),
        (HoldfastError("?"), Reason.INTERNAL_ERROR),
    ],
)
def test_every_error_says_what_to_do_next_and_is_tried_again(error: HoldfastError, reason: Reason) -> None:
    step = settled(error)
    assert step.health.reason is reason
    assert "; " in step.health.message
    assert step.retry


@pytest.mark.postgres
def test_a_store_that_wants_other_credentials_says_where_the_operator_has_its_own(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSFILE", "/nowhere")
    answer = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    errors: list[HoldfastError] = [unreachable(ClientError(answer, "ListObjectsV2"), "s3://b")]
    for password in ("", "wrong"):
        monkeypatch.setenv("PGPASSWORD", password)
        with pytest.raises(StoreUnreachable) as refused:
            PostgresConsensus(postgres.url(password=False))
        errors.append(refused.value)
    assert "no password supplied" in str(errors[1])
    for error in errors:
        told = settled(error).health.message
        assert "the chart's value credentialsSecret" in told
        assert "in the Secret that the spec names for the store (credentialsSecretRef)" in told
    silent = settled(StoreUnreachable("s3://b has not answered for 30 s")).health.message
    assert "credentialsSecret" not in silent


def test_no_password_of_a_url_gets_into_a_status() -> None:
    step = settled(StoreUnreachable("postgresql://me:geheim@host/db does not answer"))
    assert "geheim" not in step.health.message


def body(name: str, created: str, url: str = "file:///x") -> dict[str, Any]:
    return {
        "metadata": {"namespace": "ns", "name": name, "creationTimestamp": created},
        "spec": {"organizationId": ORGANIZATION, "storage": {"url": url}},
    }


def test_of_two_catalogs_the_older_one_wins_until_it_is_gone() -> None:
    index = new_cache(None)
    young, old = ObjectKey(Kind.CATALOG, "ns", "a"), ObjectKey(Kind.CATALOG, "ns", "b")
    assert index.put(young, body("a", "2026-01-02T00:00:00Z")) == ()
    assert index.older_rival(young) is None
    index.put(old, body("b", "2026-01-01T00:00:00Z"))
    assert (index.older_rival(young), index.older_rival(old)) == (old, None)
    assert index.put(old, body("b", "2026-01-01T00:00:00Z", "file:///y")) == (young,)
    assert index.older_rival(young) is None
    index.put(old, body("b", "2026-01-01T00:00:00Z"))
    index.drop(old)
    assert index.older_rival(young) is None


def test_objects_are_counted_by_kind_and_phase_while_they_are_there() -> None:
    index, now = new_cache(None), datetime(2026, 1, 2, tzinfo=UTC)
    stuck = {
        "status": {
            "conditions": conditions([], health_conditions(stalled(Reason.RESTORE_FAILED, "x")), 1, now)
        }
    }
    for name, more in (("a", {}), ("b", stuck), ("c", stuck)):
        index.put(ObjectKey(Kind.CATALOG, "ns", name), body(name, "2026-01-01T00:00:00Z") | more)
    index.drop(ObjectKey(Kind.CATALOG, "ns", "c"))
    assert index.phases() == {(Kind.CATALOG, Phase.RECONCILING): 1, (Kind.CATALOG, Phase.STALLED): 1}


@pytest.mark.parametrize(
    "same",
    [
        [
            {"url": "file:///a/b"},
            {"url": "FILE:///a//%62/"},
            {"url": "file:///a/x/../b"},
            {"blob": "file:///a/b/blob", "consensus": "sqlite:///a/b/consensus.sqlite"},
        ],
        [
            {"url": "s3://bkt/p?endpoint=http://H:80&region=x"},
            {"url": "s3://bkt/p/?endpoint=http%3A%2F%2Fh%2F"},
            {
                "blob": "s3://bkt/p/blob?endpoint=http://h",
                "consensus": "s3://bkt/p/consensus?endpoint=http://h",
            },
        ],
        [
            {"blob": "s3://bkt", "consensus": "postgres://H/d?b=1&a=2"},
            {"blob": "s3://bkt/", "consensus": "postgresql://h:5432/d?a=2&b=1"},
            {"blob": "s3://bkt/", "consensus": "postgresql://h/d?schema=holdfast&connect_timeout=9"},
        ],
    ],
)
def test_one_place_is_one_place_however_it_is_written(same: list[dict[str, str]]) -> None:
    index = new_cache(None)
    keys = [ObjectKey(Kind.CATALOG, f"ns{number}", "a") for number in range(len(same))]
    for number, (key, storage) in enumerate(zip(keys, same, strict=True)):
        resource = body("a", f"2026-01-0{number + 1}T00:00:00Z")
        resource["metadata"]["namespace"] = key.namespace
        resource["spec"]["storage"] = storage
        index.put(key, resource)
    assert [index.older_rival(key) for key in keys] == [None, *[keys[0]] * (len(keys) - 1)]


@pytest.mark.parametrize(
    "other",
    [
        {"url": "file:///a"},
        {"url": "s3://bkt/p"},
        {"url": "s3://bkt/p?endpoint=http://h:81"},
        {"blob": "file:///a/b/blob", "consensus": "postgresql://h/d"},
    ],
)
def test_other_places_are_others(other: dict[str, str]) -> None:
    here = {
        resolve(spec(storage={"url": url}), "ns", None)
        for url in ("file:///a/b", "s3://bkt/p?endpoint=http://h")
    }
    assert all(isinstance(each, Storage) for each in here)
    there = resolve(spec(storage=other), "ns", None)
    assert isinstance(there, Storage)
    assert there.stores not in {each.stores for each in here if isinstance(each, Storage)}


def test_what_can_not_be_parsed_shuts_nobody_out() -> None:
    index = new_cache(None)
    broken, good = ObjectKey(Kind.CATALOG, "ns", "a"), ObjectKey(Kind.CATALOG, "ns", "b")
    index.put(broken, {"metadata": {"creationTimestamp": "2025-01-01T00:00:00Z"}, "spec": {}})
    index.put(good, body("b", "2026-01-01T00:00:00Z"))
    assert index.older_rival(good) is None
    assert index.knows(broken)


def placed(namespace: str, url: str, created: str, **more: object) -> tuple[ObjectKey, dict[str, Any]]:
    """A Catalog of a namespace, and its resource."""
    resource = body("a", created, url)
    resource["metadata"]["namespace"] = namespace
    resource["spec"] |= more
    return ObjectKey(Kind.CATALOG, namespace, "a"), resource


def test_what_may_not_be_where_it_asks_to_be_shuts_nobody_out() -> None:
    index = new_cache(None, ("s3://b/{namespace}", "file:///srv/{namespace}"))
    for url in ("s3://b/mine/x", "file:///srv/mine/x", "file:///srv/other/../mine/x"):
        squat, squatting = placed("other", url, "2025-01-01T00:00:00Z")
        mine, asked = placed("mine", url.replace("other/../", ""), "2026-01-01T00:00:00Z")
        index.put(squat, squatting)
        index.put(mine, asked)
        assert index.older_rival(mine) is None
        assert index.rivals_of(squat) == ()
        assert index.asks_for("mine/a", ORGANIZATION)
        # A file may be in a place by its links: what it has already isn't taken from it.
        assert index.asks_for("other/a", ORGANIZATION) is url.startswith("file:")
    stash, asked = placed(
        "other", "s3://b/other/x", "2025-01-01T00:00:00Z", stash={"url": "postgresql://h/d"}
    )
    index.put(stash, asked)
    assert not index.asks_for("other/a", ORGANIZATION)


def test_what_is_refused_for_its_place_is_told_so_before_its_twin_and_is_let_go_of() -> None:
    step = rest(replace(FRESH, storage=FOREIGN, older_twin="Catalog ns/older"))
    assert step.health.reason is Reason.LOCATION_NOT_ALLOWED
    assert decided(replace(OPENED, storage=FOREIGN)) == Close()


def test_who_observes_an_organization_is_known_and_who_of_them_is_older() -> None:
    index = new_cache(None)
    mine, asked = placed("mine", "file:///x", "2026-01-01T00:00:00Z")
    index.put(mine, asked)
    twin, observing = placed("twin", "file:///x", "2025-01-01T00:00:00Z", access="Observed")
    index.put(twin, observing)
    other, observing = placed("other", "file:///y", "2026-01-02T00:00:00Z", access="Observed")
    index.put(other, observing)
    assert index.observers_of(mine) == {twin: True, other: False}
    assert index.observers_of(other) == {twin: True}
    observing["spec"]["access"] = "Managed"
    index.put(other, observing)
    assert index.observers_of(mine) == {twin: True}
    index.drop(twin)
    assert index.observers_of(mine) == index.observers_of(twin) == {}
