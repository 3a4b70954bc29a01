"""Deaths, unknown outcomes and kills of the pipelines of a collection that is fed from another one."""

import os
import random
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

from holdfast.collections import StorageController
from holdfast.errors import HoldfastError, StorageError
from holdfast.ingest.kept import offsets
from holdfast.persist import PersistClient
from testbed.faults import Fault, ProcessDeath, ScriptedPlan
from unit.cli.terminals import DEADLINE_S, HOLDFAST
from unit.collections.stores import Stores
from unit.ingest.reclockedworld import FIRST, RawCollection, bad, check, drained, feeding, good, upper

FAULTS: Final[list[Fault]] = [fault for fault in Fault if fault is not Fault.NONE]
HISTORY: Final = [
    [(good(1), 2), (bad(1), 1)],
    [(good(1), -1), (good(2), 1)],
    [(bad(1), -1), (bad(2), 3), (good(3), 1)],
    [(good(each), 1) for each in range(10, 16)],
    [(bad(2), -2)],
]


def feed(client: PersistClient, raw: RawCollection) -> None:
    """Write and feed by turns. What was written before is not written again."""
    while True:
        with feeding(client, batch={"maxRows": 3}) as ingestion:
            drained(ingestion)
        done = len({time for time, _, _ in raw.written})
        if done == len(HISTORY):
            return
        raw.write_changes(FIRST + 10 * done, HISTORY[done])


@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, marks=[] if each is Fault.DEATH_AFTER else pytest.mark.long) for each in FAULTS],
)
def test_a_fault_at_any_write_changes_nothing(fault: Fault) -> None:
    for number in range(FAULTS.index(fault), 300, 3):
        stores = Stores()
        raw = RawCollection(stores.open())
        plan = ScriptedPlan({number: fault}, matches=lambda operation: operation.writes)
        try:
            feed(stores.open(plan), raw)
        except (StorageError, ProcessDeath):
            feed(stores.open(), raw)
        check(stores.open(), raw, 0)
        holds = [each for each in raw.controller.holds("raw") if each.durable and not each.own]
        assert [each.since for each in holds] == [upper(stores.open()) - 1]
        if plan.seen <= number:
            assert number > 30
            return
    raise AssertionError("the work never ends")


SPEC: Final = """
collection: orders
key: {id: int64}
columns: {name: 'string?'}
source:
  collection: {name: raw}
  format: {json: {}}
  run: {interval: 20ms}
  batch: {maxRows: 5}
"""


def started(folder: Path) -> subprocess.Popen[str]:
    command = [str(HOLDFAST), "ingest", str(folder / "orders.yaml"), "--url", f"file://{folder}/location"]
    with (folder / "stderr").open("a") as stderr:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=os.environ.copy()
        )


@pytest.mark.long
def test_kills_of_two_instances_lose_and_repeat_nothing(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    (tmp_path / "orders.yaml").write_text(SPEC)
    client = PersistClient.open(f"file://{tmp_path}/location")
    raw = RawCollection(client)
    rows = [good(1), good(2), good(2, "y"), bad(1), bad(2)]
    processes = [started(tmp_path) for _ in range(2)]
    kills = 0
    at = int(time.time() * 1000)
    try:
        for _ in range(50):
            at += draw.randrange(1, 300)
            there = raw.at(at)
            changes = [(row, draw.randint(-there[row], 2)) for row in rows if draw.random() < 0.5]
            raw.write_changes(at, [each for each in changes if each[1]])
            time.sleep(draw.random() * 0.3)
            if draw.random() < 0.3:
                raw.compact()
            if draw.random() < 0.4:
                victim = draw.randrange(2)
                processes[victim].kill()
                processes[victim].communicate()
                kills += 1
                processes[victim] = started(tmp_path)
        deadline = time.monotonic() + DEADLINE_S
        while _upper(client) < raw.upper:
            assert time.monotonic() < deadline, f"seed {seed}: {(tmp_path / 'stderr').read_text()}"
            time.sleep(0.1)
    finally:
        for each in processes:
            each.kill()
            each.communicate()
    assert kills >= 5, f"seed {seed}"
    begin = offsets(StorageController(client), "orders")[1]["begin"][0].as_py()
    check(client, raw, begin)


def _upper(client: PersistClient) -> int:
    try:
        return upper(client)
    except HoldfastError:
        return 0
