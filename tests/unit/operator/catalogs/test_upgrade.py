"""A catalog of another format: the operator asks, upgrades, reports, or leaves it alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast._pb import objects_pb2 as pb
from holdfast.catalog import CATALOG_VERSION, MIN_VERSION, catalog_shard_id, persist_catalog
from holdfast.catalog.config import USER_VERSION
from holdfast.catalog.objects.codec import Row, RowUpdate, encode
from holdfast.catalog.objects.registry import CONFIGS, Kind
from holdfast.catalog.stores.persist import CatalogShard
from holdfast.catalog.stores.store import Kept
from holdfast.catalog.upgrade_report import Size, StepReport, UpgradeReport
from holdfast.errors import Deprecated, HoldfastError, VersionTooNew
from holdfast.persist import PersistClient
from holdfast_operator.catalogs.conditions import sizes_of, upgrade_message
from holdfast_operator.catalogs.facts import Opening, UpgradePending
from holdfast_operator.catalogs.open_catalog import OpenCatalog
from holdfast_operator.catalogs.opening import durable_state, try_upgrade
from holdfast_operator.engine.failures import settled
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.places.storage import CatalogSource, Storage
from testbed.oldcatalogs import rows_of

ORGANIZATION = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def opening(tmp_path: Path) -> Opening:
    storage = Storage(url=(tmp_path / "store").as_uri())
    return Opening(storage, ORGANIZATION, 0, "default", (), "me", "test")


def plant(opening: Opening, version: int) -> None:
    """A catalog at that version, as an older Holdfast left it."""
    with PersistClient.open(opening.storage.url) as client:
        closed = persist_catalog(client, ORGANIZATION)
        closed.load(rows_of(version, items=20), holder="old", purpose="test")


def change(opening: Opening, *updates: RowUpdate) -> None:
    """Put rows into the store past all that looks at them."""
    with PersistClient.open(opening.storage.url) as client:
        store = CatalogShard(client, catalog_shard_id(ORGANIZATION), purpose="test")
        store.append(updates, store.upper())
        store.close()


def version_row(version: int) -> Row:
    return encode(CONFIGS, pb.ConfigKey(key=USER_VERSION), pb.ConfigValue(value=version))


def state(opening: Opening) -> tuple[object, ...]:
    found = durable_state(opening)
    return found.catalog_version, found.epoch, found.deploy_generation


@pytest.mark.parametrize("version", [MIN_VERSION, CATALOG_VERSION - 1])
def test_nothing_is_upgraded_that_nobody_approved(opening: Opening, version: int) -> None:
    plant(opening, version)
    with pytest.raises(UpgradePending) as pending:
        OpenCatalog.open(replace(opening, upgrade=False))
    step = settled(pending.value)
    assert step.health.reason == "UpgradePending"
    assert f"format version {version}" in step.health.message
    assert f'holdfast.dev/approve-upgrade to "{CATALOG_VERSION}"' in step.health.message
    assert "objects passes" in try_upgrade(opening)
    assert state(opening) == (version, 1, 0)


def test_what_is_restored_from_an_older_catalog_needs_no_approval(opening: Opening, tmp_path: Path) -> None:
    plant(opening, CATALOG_VERSION - 1)
    source = CatalogSource(opening.storage, ORGANIZATION, None)
    new = replace(opening, storage=Storage(url=(tmp_path / "new").as_uri()), restore=source, upgrade=False)
    opened = OpenCatalog.open(new)
    assert opened.confirm().catalog_version == CATALOG_VERSION
    assert opened.start.restored
    opened.close()
    assert state(opening) == (CATALOG_VERSION - 1, 1, 0)


def test_what_is_approved_is_upgraded_and_what_was_before_is_kept(opening: Opening) -> None:
    plant(opening, CATALOG_VERSION - 1)
    opened = OpenCatalog.open(opening)
    assert opened.confirm().catalog_version == CATALOG_VERSION
    report, kept = opened.start.upgraded, opened.start.kept
    assert report is not None
    assert kept is not None
    assert (report.source, report.target, kept.version) == (
        CATALOG_VERSION - 1,
        CATALOG_VERSION,
        CATALOG_VERSION - 1,
    )
    opened.close()
    # The second open has nothing to tell, nor to ask.
    again = OpenCatalog.open(replace(opening, upgrade=False))
    assert (again.start.upgraded, again.start.kept) == (None, None)
    again.close()


def test_what_the_check_refuses_is_told_and_stays_as_it_is(opening: Opening) -> None:
    plant(opening, CATALOG_VERSION - 1)
    change(opening, RowUpdate(Row(Kind.ROLE.tag + b"\xff\xff", b"\xff"), 1))
    assert try_upgrade(opening).startswith("an upgrade check fails: ")
    with pytest.raises(HoldfastError):
        OpenCatalog.open(opening)
    assert state(opening) == (CATALOG_VERSION - 1, 1, 0)


@pytest.mark.parametrize(
    ("version", "error", "reason"),
    [
        (CATALOG_VERSION + 80, VersionTooNew, "VersionTooNew"),
        (MIN_VERSION - 1, Deprecated, "Deprecated"),
    ],
)
@pytest.mark.parametrize("upgrade", [True, False])
def test_what_can_not_be_opened_says_why_and_is_tried_again(
    opening: Opening, version: int, error: type[HoldfastError], reason: str, upgrade: bool
) -> None:
    OpenCatalog.open(opening).close()
    change(opening, RowUpdate(version_row(CATALOG_VERSION), -1), RowUpdate(version_row(version), 1))
    with pytest.raises(error) as refused:
        OpenCatalog.open(replace(opening, upgrade=upgrade))
    step = settled(refused.value)
    assert (step.health.reason, step.retry) == (reason, True)
    assert str(version) in step.health.message
    assert state(opening) == (version, 1, 0)


REPORT = UpgradeReport(
    15,
    17,
    (
        StepReport(
            15,
            16,
            {"roles": Size(2, 20), "items": Size(1, 5)},
            {"roles": Size(2, 30), "items": Size(1, 5)},
            0.1,
        ),
        StepReport(
            16,
            17,
            {"roles": Size(2, 30), "items": Size(1, 5)},
            {"roles": Size(3, 40), "items": Size(1, 9)},
            0.1,
        ),
    ),
    0.2,
)


def test_an_upgrade_is_told_in_one_line(opening: Opening) -> None:
    text = upgrade_message(REPORT, Kept(time=7, version=15), opening)
    assert "from format version 15 to 17: 3 rows of 25 bytes became 4 of 49" in text
    place = f"--persist {opening.storage.url} --organization-id {ORGANIZATION}"
    assert text.endswith(f"version 15 stays readable: holdfast catalog dump {place} --as-of 7")
    assert "kept" not in upgrade_message(REPORT, None, opening)


def test_an_upgrade_is_measured_by_object_type_until_the_catalog_is_gone() -> None:
    metrics = Metrics()
    metrics.upgraded("ns", "demo", *sizes_of(REPORT))

    def value(type_: str, moment: str) -> float | None:
        labels = {"namespace": "ns", "name": "demo", "type": type_, "moment": moment}
        return metrics.registry.get_sample_value("holdfast_catalog_upgrade_rows", labels)

    assert [value("roles", moment) for moment in ("before", "after")] == [2, 3]
    metrics.forget("ns", "other")
    assert value("roles", "before") == 2
    metrics.forget("ns", "demo")
    assert value("roles", "before") is None
