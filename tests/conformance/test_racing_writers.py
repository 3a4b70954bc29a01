"""Racing writers make a log without gaps, in which each success is exactly one entry.

`check_history` is the judge. The negative control shows that it notices a store that is not atomic.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

from holdfast.persist.stores import (
    Consensus,
    Expect,
    Head,
    MemoryConsensus,
    Put,
    SqliteConsensus,
)

WRITER = Path(__file__).with_name("racing_writer.py")


def check_history(consensus: Consensus, claims: Sequence[Put], *, unclaimed: int = 0) -> None:
    """Raise `AssertionError` unless the logs are gapless from 1 and hold each claim at its place.

    At most `unclaimed` entries per key may have no claim: those of writers that died before they knew.
    """
    claimed = {(claim.key, claim.seqno): claim.data for claim in claims}
    assert len(claimed) == len(claims), "two writers were told that they wrote one entry"
    for key in {claim.key for claim in claims}:
        entries = consensus.scan(key, 0, 1 << 40)
        assert [entry.seqno for entry in entries] == list(range(1, len(entries) + 1)), "the log has gaps"
        expected = {seqno: data for (owner, seqno), data in claimed.items() if owner == key}
        found = {entry.seqno: entry.data for entry in entries}
        assert expected.items() <= found.items(), "a success is not in the log, or not as it was written"
        assert len({entry.data for entry in entries}) == len(entries), "an append is in the log twice"
        assert len(found) - len(expected) <= unclaimed, "the log has entries that nobody wrote"


def _race(consensus: Consensus, *, writers: int, appends: int, keys: Sequence[str]) -> list[Put]:
    """Let threads append to all of `keys` at once; what they were told succeeded."""
    claims: list[list[Put]] = [[] for _ in range(writers)]
    failures: list[BaseException] = []
    start = threading.Barrier(writers)

    def write(writer: int) -> None:
        try:
            start.wait()
            for number in range(appends):
                payload = f"{writer}/{number}".encode()
                while True:
                    heads = consensus.heads(keys)
                    puts = [Put(key, heads[key].seqno + 1 if key in heads else 1, payload) for key in keys]
                    if consensus.compare_and_set(puts):
                        break
                claims[writer] += puts
        except BaseException as error:  # noqa: BLE001 - handed to the thread that asserts
            failures.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    return [claim for of_writer in claims for claim in of_writer]


@pytest.mark.parametrize("keys", [["a"], ["a", "b", "c"]], ids=["one key", "three keys"])
def test_threads_that_race_on_one_store(consensus: Consensus, appends: int, keys: list[str]) -> None:
    claims = _race(consensus, writers=4, appends=appends, keys=keys)

    check_history(consensus, claims)
    assert len(claims) == 4 * appends * len(keys)
    assert {key: entry.seqno for key, entry in consensus.heads(keys).items()} == dict.fromkeys(
        keys, 4 * appends
    )


def test_threads_that_race_with_a_condition(consensus: Consensus, appends: int) -> None:
    """Each append to a key of one's own is conditional on a shared lock key, which it moves too."""
    wins: list[tuple[int, int]] = []
    start = threading.Barrier(4)

    def write(writer: int) -> None:
        start.wait()
        own = 0
        while own < appends:
            lock = consensus.heads(["lock"]).get("lock", Head(0, b"")).seqno
            mine = Put(f"own{writer}", own + 1, b"x")
            if own % 2:
                done = consensus.compare_and_set([mine, Put("lock", lock + 1, b"%d" % writer)])
                if done:
                    wins.append((writer, lock + 1))
            else:
                done = consensus.compare_and_set([mine], [Expect("lock", lock)])
            own += done

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(seqno for _, seqno in wins) == list(range(1, 4 * (appends // 2) + 1))
    assert {int(entry.data): 0 for entry in consensus.scan("lock", 0, 100)}.keys() == {0, 1, 2, 3}
    holders = {entry.seqno: int(entry.data) for entry in consensus.scan("lock", 0, 100)}
    assert holders == {seqno: writer for writer, seqno in wins}


def test_truncation_races_with_writers(consensus: Consensus, appends: int) -> None:
    done = threading.Event()
    failures: list[str] = []
    dropped = 0

    def truncate() -> None:
        nonlocal dropped
        while not done.is_set():
            head = consensus.heads(["a"]).get("a")
            if head is not None:
                dropped += consensus.truncate("a", head.seqno - 3)
            entries = consensus.scan("a", 0, 1000)
            seqnos = [entry.seqno for entry in entries]
            if seqnos and seqnos != list(range(seqnos[0], seqnos[0] + len(seqnos))):
                failures.append(f"gap in {seqnos}")

    truncator = threading.Thread(target=truncate)
    truncator.start()
    claims = _race(consensus, writers=3, appends=appends, keys=["a"])
    done.set()
    truncator.join()

    assert not failures
    assert sorted(claim.seqno for claim in claims) == list(range(1, 3 * appends + 1))
    left = consensus.scan("a", 0, 1000)
    by_seqno = {claim.seqno: claim.data for claim in claims}
    assert [by_seqno[entry.seqno] for entry in left] == [entry.data for entry in left]
    assert left[-1].seqno == 3 * appends
    assert dropped + len(left) == 3 * appends


class CheckThenAct(MemoryConsensus):
    """The negative control: it looks at the heads, and later writes without looking again.

    The first two callers meet between the two steps, so that the race is certain.
    """

    def __init__(self) -> None:
        super().__init__()
        self._meeting = threading.Barrier(2)
        self._met = threading.Event()

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        heads = self.heads([put.key for put in puts])
        if any(heads.get(put.key, Head(0, b"")).seqno != put.seqno - 1 for put in puts):
            return False
        if not self._met.is_set():
            self._meeting.wait(timeout=60)
            self._met.set()
        super().compare_and_set(puts, expect)
        return True


class Duplicating(MemoryConsensus):
    """The other negative control: it appends twice what was asked for once."""

    def compare_and_set(self, puts: Sequence[Put], expect: Sequence[Expect] = ()) -> bool:
        done = super().compare_and_set(puts, expect)
        super().compare_and_set([Put(put.key, put.seqno + 1, put.data) for put in puts])
        return done


def test_the_judge_catches_a_store_that_checks_and_then_acts() -> None:
    consensus = CheckThenAct()
    claims = _race(consensus, writers=2, appends=5, keys=["a"])

    with pytest.raises(AssertionError, match="two writers were told"):
        check_history(consensus, claims)


def test_the_judge_catches_a_store_that_appends_twice() -> None:
    consensus = Duplicating()
    claims = _race(consensus, writers=2, appends=5, keys=["a"])

    with pytest.raises(AssertionError, match="in the log twice"):
        check_history(consensus, claims)


def test_the_judge_catches_a_lost_success() -> None:
    consensus = MemoryConsensus()
    claims = _race(consensus, writers=2, appends=5, keys=["a"])

    with pytest.raises(AssertionError, match="not in the log"):
        check_history(consensus, [*claims, Put("a", 11, b"lost")])


def _start(place: str, writer: str, count: int, keys: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WRITER), place, writer, str(count), *keys],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _release(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert _pipes(process)[1].readline() == "ready\n"
    for process in processes:
        stdin, _ = _pipes(process)
        stdin.write("go\n")
        stdin.flush()


def _claims(lines: Sequence[str]) -> list[Put]:
    return [
        Put(key, seqno, payload.encode())
        for line in lines
        if line.endswith("\n")
        for key, (seqno, payload) in json.loads(line).items()
    ]


def test_processes_that_race_on_one_sqlite_file(tmp_path: Path) -> None:
    path = tmp_path / "consensus.sqlite"
    processes = [_start(f"sqlite://{path}", f"w{number}", 40, ["a", "b"]) for number in range(3)]
    _release(processes)
    lines = [line for process in processes for line in _pipes(process)[1]]
    codes = [process.wait() for process in processes]

    assert codes == [0, 0, 0]
    store = SqliteConsensus(path)
    claims = _claims(lines)
    check_history(store, claims)
    assert len(claims) == 3 * 40 * 2
    store.close()


def test_killed_processes_lose_nothing_that_they_were_told(tmp_path: Path) -> None:
    path = tmp_path / "consensus.sqlite"
    processes = [_start(f"sqlite://{path}", f"w{number}", 1_000_000, ["a", "b"]) for number in range(3)]
    _release(processes)
    lines = []
    for number, process in enumerate(processes):
        lines += [_pipes(process)[1].readline() for _ in range(10 * (number + 1))]
        process.kill()
        lines += list(_pipes(process)[1])
    for process in processes:
        assert process.wait() == -9

    store = SqliteConsensus(path)
    claims = _claims(lines)
    check_history(store, claims, unclaimed=len(processes))
    heads = store.heads(["a", "b"])
    assert heads["a"] == heads["b"], "a step on two keys was torn"
    assert store.compare_and_set(
        [Put("a", heads["a"].seqno + 1, b"on"), Put("b", heads["a"].seqno + 1, b"on")]
    )
    store.close()
