"""Write skew, unique names and id allocators: processes and threads make changes that exclude each other.

Only the process that opened last may commit. If two changes are valid alone but not together, only one
succeeds.
"""

import itertools
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol, Self

import pytest

from conformance.catalogs import PLAIN, SHARED, Catalogs, writable
from conformance.rival import CHANGES, Rival, answer_of, make_schemas, note
from holdfast.catalog import Catalog, OpenMode
from holdfast.catalog.objects.registry import AUDIT_LOG, CLUSTERS, ITEMS, ROLES, SCHEMAS, SETTINGS
from holdfast.errors import BadInput, TransactionInProgress, UniquenessViolation
from testbed.children import plain_path

PROGRAM = Path(__file__).with_name("rival.py")
PAIRS = (("name", "name"), ("ids", "ids"), ("count", "count"), ("drop", "item"), ("drop", "drop"))
STEPS = ("open", "begin", "commit")
ORDERS = [
    ["b" if place in mine else "a" for place in range(6)] for mine in itertools.combinations(range(6), 3)
]
"""All ways in which the steps of two processes can follow each other."""
MEETINGS = [(pair, order) for pair in PAIRS for order in ORDERS if pair[0] != pair[1] or order[0] == "a"]
VERDICTS = (
    "name 0 was made 2",
    "given twice",
    "a count was lost",
    "schema that was dropped",
    "drop 0 was made 2",
)
"""What the judge says of each pair that is made with no fence."""
DONE = {"done": True}
SETTLED = ("name", "drop", "item")
"""What is made once, whoever makes it."""

Attempt = dict[str, Any]


class Asked(Protocol):
    """Who carries out orders."""

    def ask(self, **order: Any) -> Any:
        """The answer, where there is one."""


class Process:
    """One rival; as a context manager it is ended, if it has not been."""

    def __init__(self, catalogs: Catalogs, name: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(catalogs.address), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": plain_path(PROGRAM.parent.parent)},
        )

    def ask(self, **order: Any) -> Any:
        found = next(self.answers(**order), None)
        assert found is not None, f"process {self.name} has ended; its standard error says why"
        return found

    def answers(self, **order: Any) -> Iterator[Any]:
        """What it says to an order, until its end; what a SIGKILL has cut off counts for nothing."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if order:
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(order) + "\n")
                self._process.stdin.flush()
        for line in self._process.stdout:
            if line.endswith("\n"):
                yield json.loads(line)

    def kill(self) -> None:
        self._process.kill()

    def __enter__(self) -> Self:
        assert self.ask() == DONE
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()


class InProcess:
    """A rival that is no process of its own."""

    def __init__(self, catalogs: Catalogs, name: str) -> None:
        self._rival = Rival(catalogs.address, name)

    def ask(self, **order: Any) -> Any:
        (found,) = self._rival.carry_out(order)
        return found


@pytest.fixture
def catalog(catalogs: Catalogs) -> Catalog:
    """As the first process opened it."""
    return writable(catalogs.openable(), "first")


def judge(attempts: Sequence[Attempt], catalogs: Catalogs) -> None:
    """Raise `AssertionError` unless what was told is there, once, and no two that exclude each other."""
    reader = catalogs.openable("read").open(OpenMode.READ_ONLY)
    events = [(event.key.id, event.value.object_name) for event in reader.stream(AUDIT_LOG)]
    # Beside those of attempts are those of items, which nobody is told of.
    made = Counter(name for _, name in events if "/" in name)
    assert len({number for number, _ in events}) == len(events), "two events have one id"
    assert made.keys() <= {attempt["attempt"] for attempt in attempts}, "a change that nobody tried was made"
    for attempt in attempts:
        times, answer = made[attempt["attempt"]], attempt.get("answer")
        assert times <= 1, f"{attempt} was made twice"
        assert answer != "done" or times == 1, f"{attempt} was lost"
        assert answer not in ("fenced", "refused") or times == 0, f"{attempt} was made all the same"
    happened = [attempt for attempt in attempts if made[attempt["attempt"]]]

    given = Counter(number for attempt in happened for number in attempt["ids"])
    assert set(given.values()) <= {1}, f"ids were given twice: {given}"
    numbers = {cluster.key.id.user for cluster in reader.objects(CLUSTERS)}
    assert not numbers & given.keys(), "an id that was given was taken"
    names = Counter(role.value.name for role in reader.objects(ROLES))
    assert set(names.values()) <= {1}, f"roles share a name: {names}"
    schemas = {schema.key.id.user for schema in reader.objects(SCHEMAS)}
    for item in reader.objects(ITEMS):
        assert item.value.schema_id.user in schemas, f"item {item.value.name} is in a schema that was dropped"
    changes = Counter(tuple(attempt["change"]) for attempt in happened)
    for (what, n), times in changes.items():
        # An item that is there already is made again without a change, and the event is a commit.
        assert times == 1 or what in ("ids", "count", "item"), f"{what} {n} was made {times} times"
        assert what != "item" or not changes["drop", n], f"schema {n} was dropped, and an item was made in it"
    counted = [setting.value.value for setting in reader.objects(SETTINGS) if setting.key.name == "count"]
    expected = sum(times for (what, _), times in changes.items() if what == "count")
    assert counted == ([str(expected)] if expected else []), "a count was lost"
    reader.close()


def met(
    order: Sequence[str], pair: tuple[str, str], n: int, both: Sequence[Asked], **commit: bool
) -> list[Attempt]:
    """Two processes take their steps in that order; what each was told."""
    left = [list(STEPS), list(STEPS)]
    attempts: list[Attempt] = [{}, {}]
    for who in map("ab".index, order):
        match left[who].pop(0):
            case "open":
                assert both[who].ask(do="open") == DONE
            case "begin":
                attempts[who] = both[who].ask(do="begin", change=[pair[who], n])
            case "commit" if "answer" not in attempts[who]:
                attempts[who] |= both[who].ask(do="commit", **commit)
    return attempts


@pytest.mark.parametrize(
    "catalogs",
    [
        *SHARED[:2],
        *(pytest.param(*each.values, marks=[*each.marks, pytest.mark.long]) for each in SHARED[2:]),
    ],
    indirect=True,
)
@pytest.mark.long
def test_of_two_processes_one_wins_in_whatever_order_they_come(catalogs: Catalogs, catalog: Catalog) -> None:
    catalog.in_transaction(lambda tx: make_schemas(tx, range(len(MEETINGS))))
    attempts: list[Attempt] = []
    with Process(catalogs, "a") as a, Process(catalogs, "b") as b:
        for n, (pair, order) in enumerate(MEETINGS):
            both = met(order, pair, n, (a, b))
            answers = [attempt["answer"] for attempt in both]
            one_by_one = order in (list("aaabbb"), list("bbbaaa"))
            assert answers.count("done") == (2 if one_by_one and pair[0] not in SETTLED else 1), both
            attempts += both
        judge(attempts, catalogs)


@pytest.mark.parametrize("catalogs", ["stash in SQLite"], indirect=True)
@pytest.mark.parametrize(("pair", "verdict"), list(zip(PAIRS, VERDICTS, strict=True)))
def test_changes_that_ignore_the_fence_are_found(
    catalogs: Catalogs, catalog: Catalog, pair: tuple[str, str], verdict: str
) -> None:
    """The negative control: both begin, and each commits whatever the other has done."""
    catalog.in_transaction(lambda tx: make_schemas(tx, range(1)))
    attempts = met("ababab", pair, 0, [InProcess(catalogs, name) for name in "ab"], bug=True)
    assert [attempt["answer"] for attempt in attempts] == ["done", "done"]
    with pytest.raises(AssertionError, match=verdict):
        judge(attempts, catalogs)


@pytest.mark.parametrize("catalogs", SHARED, indirect=True)
@pytest.mark.long
def test_processes_that_race_and_are_killed_break_nothing(catalogs: Catalogs, catalog: Catalog) -> None:
    """Two of four are killed between an attempt and its answer."""
    rounds, killed = 8, {"b": 3, "d": 5}
    catalog.in_transaction(lambda tx: make_schemas(tx, range(rounds)))
    attempts: dict[str, Attempt] = {}
    with ExitStack() as stack:
        processes = [Process(catalogs, name) for name in "abcd"]
        for process in processes:
            stack.callback(process.__exit__)
        for process in processes:
            process.__enter__()
            assert process.ask(do="open") == DONE

        def follow(process: Process, n: int) -> list[Attempt]:
            said: list[Attempt] = []
            for answer in process.answers(do="round", n=n):
                if answer == DONE:
                    break
                said.append(answer)
                if killed.get(process.name) == n and "answer" not in answer:
                    process.kill()
            return said

        with ThreadPoolExecutor(len(processes)) as pool:
            for n in range(rounds):
                for said in pool.map(follow, processes, [n] * len(processes)):
                    attempts |= {answer["attempt"]: answer for answer in said}
    judge(list(attempts.values()), catalogs)
    answers = Counter(attempt.get("answer") for attempt in attempts.values())
    assert answers["fenced"] >= rounds, "the processes did not meet"
    assert answers["refused"] >= rounds, "the processes made no changes that exclude each other"
    assert 1 <= answers[None] <= len(killed)
    with writable(catalogs.openable(), "last") as last:
        assert {f"name-{n}" for n in range(rounds)} <= {role.value.name for role in last.objects(ROLES)}


@pytest.mark.parametrize("catalogs", PLAIN, indirect=True)
def test_threads_of_one_handle_break_nothing(catalogs: Catalogs, catalog: Catalog) -> None:
    rounds, threads = 10, 4
    catalog.in_transaction(lambda tx: make_schemas(tx, range(rounds)))
    start = threading.Barrier(threads)

    def work(name: str) -> list[Attempt]:
        attempts: list[Attempt] = []
        for n in range(rounds):
            start.wait(60)
            for what in CHANGES:
                attempt: Attempt = {"attempt": f"{name}/{len(attempts)}", "change": [what, n], "ids": []}
                attempts.append(attempt)

                def change(tx: Any, attempt: Attempt = attempt) -> None:
                    what, n = attempt["change"]
                    attempt["ids"] = CHANGES[what](tx, n)
                    note(tx, attempt["attempt"])

                try:
                    catalog.in_transaction(change)
                except (BadInput, UniquenessViolation) as error:
                    attempt |= answer_of(error)
                else:
                    attempt |= {"answer": "done"}
        return attempts

    with ThreadPoolExecutor(threads) as pool:
        attempts = [attempt for each in pool.map(work, "abcd") for attempt in each]
    judge(attempts, catalogs)
    done = Counter(attempt["change"][0] for attempt in attempts if attempt["answer"] == "done")
    assert (done["name"], done["ids"], done["count"]) == (rounds, rounds * threads, rounds * threads)


@pytest.mark.parametrize("catalogs", PLAIN, indirect=True)
def test_a_transaction_waits_for_no_other_and_commits_over_none(catalogs: Catalogs, catalog: Catalog) -> None:
    catalog.in_transaction(lambda tx: make_schemas(tx, range(1)))
    tx = catalog.transaction()
    CHANGES["drop"](tx, 0)
    with pytest.raises(TransactionInProgress):
        catalog.in_transaction(lambda other: CHANGES["item"](other, 0))
    with pytest.raises(TransactionInProgress):
        catalog.transaction()
    catalog.commit_transaction(tx)
    with pytest.raises(BadInput, match="there is no schema"):
        catalog.in_transaction(lambda other: CHANGES["item"](other, 0))
    judge([], catalogs)
