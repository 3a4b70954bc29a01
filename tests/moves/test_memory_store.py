# ruff: noqa: B023 - what is asked is asked at once
"""The store in memory answers as the real ones do: what is proved on it holds for them."""

import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.catalog.objects.codec import Row, RowUpdate
from holdfast.catalog.objects.registry import Kind
from holdfast.catalog.stores.persist import CatalogShard
from holdfast.catalog.stores.stash import StashStore
from holdfast.catalog.stores.store import CatalogStore
from holdfast.errors import HoldfastError
from holdfast.persist import PersistClient, PersistConfig
from moves.memorystore import Disk, MemoryStore

STORIES = 12
STEPS = 60


def _answer(ask: Callable[[], Any]) -> object:
    try:
        found = ask()
    except HoldfastError as error:
        return type(error).__name__
    if isinstance(found, list) and found and isinstance(found[0], tuple) and isinstance(found[0][1], list):
        return [(time, sorted(updates)) for time, updates in found]
    return found


def _row(chance: random.Random) -> Row:
    return Row(chance.choice((Kind.ROLE, Kind.ITEM)).tag + bytes([chance.randrange(5)]), b"v")


def _fence(nonce: int) -> Row:
    return Row(Kind.FENCE_TOKEN.tag, bytes([nonce]))


def _tell(seed: int, model: CatalogStore, real: CatalogStore, *, checks_history: bool) -> None:
    chance = random.Random(seed)
    rows: set[Row] = set()
    fence: Row | None = None

    def same(ask: Callable[[CatalogStore], Any]) -> object:
        answers = [_answer(lambda store=store: ask(store)) for store in (model, real)]
        assert answers[0] == answers[1]
        return answers[0]

    for _ in range(STEPS):
        upper = same(lambda store: store.upper())
        assert isinstance(upper, int)
        at = upper + chance.choice((0, 0, 0, 0, 1, -1)) if upper else 0
        given = chance.choice((None, fence, fence, _fence(99))) if checks_history else None
        match chance.randrange(6):
            case 0 | 1:
                row = _row(chance)
                updates = [RowUpdate(row, -1 if row in rows else 1)]
                if fence is None or chance.random() < 0.3:
                    updates += [RowUpdate(fence, -1)] if fence else []
                    updates.append(RowUpdate(_fence(chance.randrange(90)), 1))
                if updates[-2:][0].row == updates[-1].row and len(updates) > 1:
                    continue
                if same(lambda store: store.append(updates, at, fence=given, take_hold=True)) is None:
                    for each, diff in updates:
                        rows.add(each) if diff > 0 else rows.discard(each)
                    fence = next(each for each in rows if each.key == Kind.FENCE_TOKEN.tag)
            case 2 if upper:
                to = at + chance.randrange(1, 4)
                same(lambda store: store.advance(at, to, fence=given))
            case 3 if upper:
                kinds = chance.choice(((), (Kind.ROLE,), (Kind.FENCE_TOKEN, Kind.ITEM)))
                time = chance.randrange(upper)
                same(lambda store: sorted(store.rows(time, kinds)))
            case 4 if upper:
                lower = chance.randrange(upper) + 1
                same(lambda store: store.changes(lower, upper))
            case 5 if upper:
                version = chance.randrange(14, 17)
                match chance.randrange(2):
                    case 0:
                        time = upper - 1
                        same(lambda store: store.keep(time, version))
                    case 1 if version in {kept.version for kept in model.kept()}:
                        same(lambda store: store.let_go(version))
                same(lambda store: store.kept())


@pytest.mark.parametrize("seed", range(STORIES))
def test_memory_answers_as_persist_does(seed: int) -> None:
    config = PersistConfig(maintenance="inline")
    with PersistClient.open(f"memory://{uuid.uuid4()}", config=config) as client:
        shard = CatalogShard(client, f"s{uuid.uuid4()}", purpose="a test")
        _tell(seed, MemoryStore(Disk("persist"), checks_history=False), shard, checks_history=False)
        shard.close()


@pytest.mark.parametrize("seed", range(STORIES))
def test_memory_answers_as_a_stash_does(seed: int, tmp_path: Path) -> None:
    stash = StashStore(f"sqlite://{tmp_path}/stash.sqlite")
    _tell(seed, MemoryStore(Disk("the stash"), checks_history=True), stash, checks_history=True)
    stash.close()
