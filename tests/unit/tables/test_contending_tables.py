"""Processes that append to one table: after a lost race only the commit is redone, and nothing is lost."""

import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import BadInput
from holdfast.tables import opened
from testbed.faults import Fault, Operation, ScriptedPlan
from unit.collections.stores import Stores

COLUMNS = {"id": "int64", "who": "int32"}


class Recorded(ScriptedPlan):
    """Records the operations of a process."""

    def __init__(self) -> None:
        super().__init__({})
        self.names: list[str] = []

    def decide(self, operation: Operation) -> Fault:
        self.names.append(operation.name)
        return super().decide(operation)

    def taken(self) -> list[str]:
        names, self.names = self.names, []
        return names


@pytest.mark.parametrize("is_contended", [False, True])
def test_rows_with_old_columns_do_not_follow_a_change_of_columns(is_contended: bool) -> None:
    """A change of columns makes the append lose a race. The column `who` is another one afterwards."""
    stores = Stores()
    table = holdfast.table(stores.open(), "t", columns={**COLUMNS, "more": "int64"})
    other = holdfast.table(stores.open(), "t")
    rows = [{"id": 0, "who": 0, "more": 0}]
    table.append(rows)
    if is_contended:
        other.append(rows)
        table.append(rows)
    before = other.read()
    other.rename_column("who", "whose")
    other.rename_column("more", "who")
    with pytest.raises(BadInput, match="column 'more' is not in the schema"):
        table.append(rows)
    assert other.read().num_rows == before.num_rows


def test_after_a_lost_race_only_the_commit_is_redone() -> None:
    stores, plan = Stores(), Recorded()
    table = holdfast.table(stores.open(plan), "t", columns=COLUMNS)
    other = holdfast.table(stores.open(), "t")
    table.append([{"id": 0, "who": 0}])
    # Its first read takes its leases, which are versions of the shards.
    other.latest_time()
    table.append([{"id": -1, "who": 0}])
    other.append([{"id": 0, "who": 1}])
    plan.taken()
    table.append([{"id": 1, "who": 0}])
    commit = "consensus.compare_and_set"
    # It reads the heads to know that it lost, then where rows go now, and again when it is its turn.
    assert plan.taken() == [commit, *["consensus.heads"] * 3, commit]
    # From then on it waits for its turn first, and loses no race.
    for number in range(2, 10):
        other.append([{"id": number, "who": 1}])
        assert table.append([{"id": number, "who": 0}]) == other.latest_time()
        assert plan.taken() == ["consensus.heads", commit]
    # Alone again, it needs no turns after a while.
    for number in range(10, 10 + opened._CONTENDED + 1):
        table.append([{"id": number, "who": 0}])
    plan.taken()
    table.append([{"id": 99, "who": 0}])
    assert plan.taken() == [commit]
    found = Counter((row["id"], row["who"]) for row in other.read().to_pylist())
    assert set(found.values()) == {1}
    assert found.total() == 2 + 9 + opened._CONTENDED + 2 + 9


def test_an_append_that_uploads_takes_no_turn() -> None:
    stores, plan = Stores(), Recorded()
    table = holdfast.table(stores.open(plan, inline_max_bytes=100), "t", columns=COLUMNS)
    other = holdfast.table(stores.open(), "t")
    for number in range(3):
        table.append({"id": range(100), "who": [0] * 100})
        other.append([{"id": number, "who": 1}])
    assert table._opened.is_contended
    plan.taken()
    table.append({"id": range(100), "who": [0] * 100})
    names = plan.taken()
    assert names.index("blob.put") < names.index("consensus.heads")
    assert table.count() == 403


WRITER = """
import sys, threading
import pytest

import holdfast
from holdfast.errors import BadInput
url, who = sys.argv[1], int(sys.argv[2])
table = holdfast.table(url, "t")
print("ready", flush=True)
sys.stdin.readline()
lock = threading.Lock()
def append(thread):
    for number in range(thread, 1_000_000, 3):
        table.append([{"id": number, "who": who}])
        with lock:
            print(number, flush=True)
threads = [threading.Thread(target=append, args=(thread,), daemon=True) for thread in range(3)]
for thread in threads:
    thread.start()
sys.stdin.readline()
"""


def test_what_killed_processes_acknowledged_is_there_once(tmp_path: Path) -> None:
    """Three processes with three threads each append to one table, and are killed one after the other."""
    url = tmp_path.as_uri()
    acknowledged: list[list[int]] = [[], [], []]
    with ExitStack() as stack:
        table = stack.enter_context(holdfast.table(url, "t", columns=COLUMNS))
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", WRITER, url, str(who)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for who in range(3)
        ]
        for process in processes:
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

        def listen(who: int) -> None:
            lines = processes[who].stdout
            assert lines is not None
            acknowledged[who].extend(int(line) for line in lines if line.endswith("\n"))

        listening = [threading.Thread(target=listen, args=(who,)) for who in range(3)]
        for process, thread in zip(processes, listening, strict=True):
            thread.start()
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        own = 0
        for who, process in enumerate(processes):
            for _ in range(30):
                table.append([{"id": own, "who": 9}])
                own += 1
            process.kill()
            listening[who].join(60)
        found = Counter((row["id"], row["who"]) for row in table.read().to_pylist())
        assert set(found.values()) == {1}, "a row is there twice"
        for who, numbers in enumerate(acknowledged):
            assert numbers, "a process never got its turn"
            there = {number for number, of in found if of == who}
            assert set(numbers) <= there, "an acknowledged row is lost"
            # What each of its threads had in flight when it was killed.
            assert len(there - set(numbers)) <= 3
        assert sum(of == 9 for _, of in found) == own == 90
