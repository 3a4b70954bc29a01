"""A catalog that the operator cannot take over yet: what it shows, and that it continues by itself."""

import asyncio
import shlex
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.catalog import CATALOG_VERSION, FenceToken, catalog_shard_id
from holdfast.catalog.stores.persist import CatalogShard
from holdfast.catalog.stores.preamble import read_preamble
from holdfast.cli import main
from holdfast.errors import Fenced, FenceRegressed, StoreUnreachable
from holdfast.persist import PersistClient
from holdfast_operator.api.names import Kind, Reason
from holdfast_operator.catalogs.facts import Durable, EpochWentBack, NothingThere, Opening
from holdfast_operator.catalogs.open_catalog import OpenCatalog
from holdfast_operator.catalogs.stores import Stores
from holdfast_operator.catalogs.takeovers import (
    LONGEST,
    Found,
    catalog_command,
    needs_fence,
    no_answer,
    regressed,
    shut_out,
)
from holdfast_operator.engine.health import Phase
from holdfast_operator.engine.kube import ObjectKey
from holdfast_operator.engine.metrics import Metrics
from holdfast_operator.places.long_calls import LongCalls, UnderWay
from holdfast_operator.places.pool import StorePool
from holdfast_operator.places.storage import DumpSource, StashLocation, Storage

ORGANIZATION = "11111111-2222-3333-4444-555555555555"
KEY = ObjectKey(Kind.CATALOG, "ns", "demo")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SILENCE = timedelta(minutes=2)
OPENING = Opening(Storage(url="file:///a b"), ORGANIZATION, 3, "default", (), "me", "test")


def play(story: Callable[[Stores], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        metrics = Metrics()
        long = LongCalls(metrics, lambda _: None, patience=60.0)
        pool = StorePool(metrics, deadline=60.0)
        stores = Stores(pool, long)
        try:
            await story(stores)
        finally:
            await stores.close_all()
            long.close()
            pool.close()

    asyncio.run(run())


def go_back(opening: Opening, epoch: int) -> None:
    """What a restore of an older copy does to the fence token."""
    with PersistClient.open(opening.storage.url) as client:
        store = CatalogShard(client, catalog_shard_id(ORGANIZATION), purpose="test")
        seen = read_preamble(store, store.upper())
        store.append(seen.fence(FenceToken(3, epoch, "older", "copy")), seen.upper)
        store.close()


def test_a_catalog_whose_token_went_back_waits_for_the_fence_and_goes_on(tmp_path: Path) -> None:
    opening = replace(OPENING, storage=Storage(url=(tmp_path / "store").as_uri()))
    for _ in range(4):
        OpenCatalog.open(opening).close()

    async def story(stores: Stores) -> None:
        await stores.open(KEY, opening)
        assert stores.least_epoch(KEY, opening) is None
        go_back(opening, 2)
        with pytest.raises(FenceRegressed) as error:
            await stores.confirm(KEY)
        await stores.set_aside(KEY, error.value)
        assert stores.opened(KEY) is None
        least = stores.least_epoch(KEY, opening)
        assert least == 5
        # Of another place nothing is known.
        assert stores.least_epoch(KEY, replace(opening, storage=Storage(url="file:///other"))) is None
        found = await stores.answer(opening)
        assert isinstance(found, Durable)
        assert (found.epoch, needs_fence(found, least)) == (2, True)
        told = regressed(opening, found, least)
        assert (told.phase, told.reason) == (Phase.STALLED, Reason.FENCE_REGRESSED)
        assert "stored epoch is 2, but the catalog was open at 5" in told.message
        _, command, _ = told.message.split("`")
        raised = await asyncio.to_thread(CliRunner().invoke, main, shlex.split(command)[1:])
        assert raised.exit_code == 0, raised.output
        found = await stores.answer(opening)
        assert isinstance(found, Durable)
        assert not needs_fence(found, least)
        await stores.open(KEY, opening)
        facts = await stores.confirm(KEY)
        assert facts is not None
        assert facts.epoch == 6
        assert stores.least_epoch(KEY, opening) is None

    play(story)


def test_a_token_that_went_back_is_found_by_who_was_not_there(tmp_path: Path) -> None:
    """Another process; all that it knows is the epoch of the last open."""
    opening = replace(OPENING, storage=Storage(url=(tmp_path / "store").as_uri()))
    for _ in range(4):
        OpenCatalog.open(opening).close()
    go_back(opening, 2)
    knowing = replace(opening, least_epoch=4)

    async def story(stores: Stores) -> None:
        with pytest.raises(EpochWentBack) as error:
            await stores.open(KEY, knowing)
        assert (error.value.found.epoch, error.value.least) == (2, 4)
        assert stores.least_epoch(KEY, knowing) == 4
        found = await stores.answer(knowing)
        assert isinstance(found, Durable)
        assert found.epoch == 2  # Nobody took it over.
        await stores.open(KEY, replace(opening, least_epoch=2))
        assert stores.least_epoch(KEY, knowing) is None
        facts = await stores.confirm(KEY)
        assert facts is not None
        assert facts.epoch == 3

    play(story)


@pytest.mark.parametrize("left", ["location", "nothing"])
def test_a_catalog_that_is_gone_is_not_made_anew(tmp_path: Path, left: str) -> None:
    opening = replace(OPENING, storage=Storage(url=(tmp_path / "store").as_uri()), least_epoch=4)
    if left == "location":
        PersistClient.open(opening.storage.url).close()

    async def story(stores: Stores) -> None:
        with pytest.raises(EpochWentBack) as error:
            await stores.open(KEY, opening)
        told = regressed(opening, error.value.found, error.value.least)
        assert (told.phase, told.reason) == (Phase.STALLED, Reason.FENCE_REGRESSED)
        assert "which was open at epoch 4" in told.message
        assert (tmp_path / "store").exists() is (left == "location")
        # Who deletes it finds that there is nothing to delete.
        with pytest.raises(NothingThere):
            await stores.open(KEY, replace(opening, existing_only=True))
        # What the store says of it keeps it closed.
        found = await stores.answer(opening)
        assert isinstance(found, Durable)
        assert needs_fence(found, 4)

    play(story)


@pytest.mark.parametrize(
    ("found", "waits"),
    [(None, True), (4, True), (5, False), (9, False)],
)
def test_only_an_epoch_that_is_known_lets_it_go_on(found: int | None, waits: bool) -> None:
    assert needs_fence(Durable(ORGANIZATION, "s", 17, found, 0), 5) is waits
    assert needs_fence(None, 5)
    assert "stored epoch is unknown" in regressed(OPENING, None, 5).message


def test_a_command_can_be_pasted() -> None:
    assert catalog_command("fence", OPENING, "--at-least", "5") == (
        f"holdfast catalog fence --persist 'file:///a b' --organization-id {ORGANIZATION} --at-least 5"
    )
    two = replace(
        OPENING, storage=Storage(blob="s3://b/x?endpoint=http://h&p=1", consensus="postgresql://h/d")
    )
    assert catalog_command("kept", two) == (
        "holdfast catalog kept --persist 's3://b/x?endpoint=http://h&p=1' --consensus postgresql://h/d "
        f"--organization-id {ORGANIZATION}"
    )
    linked = replace(OPENING, stash=StashLocation("postgresql://h/d", "holdfast", "keys"))
    assert catalog_command("kept", linked).startswith(
        "holdfast catalog kept --stash 'postgresql://h/d?schema=holdfast' --persist 'file:///a b' --org"
    )


@pytest.mark.parametrize(
    ("generation", "reason", "retry"),
    [
        (4, Reason.DEPLOY_GENERATION_TOO_LOW, False),
        (3, Reason.FENCED_BY_OTHER, True),
        (2, Reason.FENCED_BY_OTHER, True),
    ],
)
def test_only_a_greater_generation_is_one_that_is_too_low(
    generation: int, reason: Reason, retry: bool
) -> None:
    mine, durable = FenceToken(3, 7, "me", "test"), FenceToken(generation, 8, "nightly", "load")
    step = shut_out(Fenced(mine, durable), OPENING)
    assert (step.health.reason, step.retry) == (reason, retry)
    assert "nightly" in step.health.message
    assert ("spec.deployGeneration" in step.health.message) is not retry


UNREACHABLE = StoreUnreachable("did not answer")
HERE = Durable(ORGANIZATION, "s", CATALOG_VERSION, 1, 0)
RESTORED = replace(OPENING, restore=DumpSource("s3://b/d"))


@pytest.mark.parametrize(
    ("opening", "found", "minutes", "says"),
    [
        (OPENING, UNREACHABLE, 2, "not responded since 2026-01-01T12:00:00Z"),
        (RESTORED, UNREACHABLE, 2, "not responded since"),
        (OPENING, UNREACHABLE, 1.9, None),
        (OPENING, UNREACHABLE, None, "other opens already wait"),
        (OPENING, HERE, None, None),
        (OPENING, HERE, 2 * LONGEST - 0.1, None),
        (OPENING, HERE, 2 * LONGEST, "only in part, or very slowly, since 2026-"),
        (OPENING, None, 2 * LONGEST, "only in part"),
        (OPENING, replace(HERE, catalog_version=CATALOG_VERSION - 1), 600, None),
        (RESTORED, None, 600, None),
    ],
)
def test_a_store_that_does_not_answer_is_told_from_a_slow_one(
    opening: Opening, found: Found, minutes: float | None, says: str | None
) -> None:
    wait = UnderWay(None if minutes is None else NOON)
    health = no_answer(opening, wait, NOON + timedelta(minutes=minutes or 0), found, SILENCE)
    if says is None:
        assert health is None
        return
    assert health is not None
    assert (health.phase, health.reason) == (Phase.STALLED, Reason.STORE_UNREACHABLE)
    assert says in health.message
    assert "check the store" in health.message
