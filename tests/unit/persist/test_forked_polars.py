"""A forked child works after its parent used Polars, whose threads are lost: it uses Arrow."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Each script has at most this long; a child that waits for a thread which does not exist never ends.
LIMIT_S = 120
ROWS = 3_000
BEGIN = f"""
import multiprocessing, os, sys
url = sys.argv[1]
COLUMNS = {{"id": "int64", "name": "string", "share": "float64?"}}
def rows(ids):
    return [{{"id": i, "name": f"name {{i % 7}}", "share": None if i % 3 else i / 7}} for i in ids]
def opened():
    import holdfast
    return holdfast.table(url, "orders", columns=COLUMNS, key=["id"])
def mine(table, ids):
    return sorted(i for i in table.read()["id"].to_pylist() if i in ids)
def work(first):
    from holdfast.persist import PersistClient
    from holdfast.polars_forks import polars_works
    ids = range(first, first + {ROWS})
    with opened() as table:
        table.append(rows(ids))
        table.upsert(rows(ids))
        table.update([*ids], lambda there: there)
        table.delete([*ids][::2])
        assert mine(table, ids) == [*ids][1::2]
    with PersistClient.open(url) as client:
        for shard in client.shards():
            client.maintain(shard)
    with opened() as table:
        assert mine(table, ids) == [*ids][1::2]
    return polars_works()
def in_fork(*firsts):
    with multiprocessing.get_context("fork").Pool(len(firsts)) as pool:
        return pool.map(work, firsts)
"""


@pytest.fixture
def ran(tmp_path: Path) -> Callable[[str], str]:
    def run(program: str) -> str:
        url = (tmp_path / "location").as_uri()
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", BEGIN + program, url],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def test_a_child_opens_a_table_that_its_parent_has_read(ran: Callable[[str], str]) -> None:
    program = f"work({10 * ROWS}); print(in_fork(0), in_fork({ROWS}, {2 * ROWS}))"
    assert ran(program) == "[False] [False, False]"


def test_a_grandchild_opens_it_too(ran: Callable[[str], str]) -> None:
    program = """
work(0)
if os.fork() == 0:
    from concurrent.futures import ProcessPoolExecutor
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        print(pool.submit(work, 10_000).result(), flush=True)
    os._exit(0)
assert os.wait()[1] == 0
"""
    assert ran(program) == "False"


@pytest.mark.skipif(sys.platform != "linux", reason="threads are found by their names in /proc")
@pytest.mark.parametrize(
    ("imported", "use"),
    [
        (
            "import holdfast.persist",
            "pl.DataFrame({'a': range(10_000)}).lazy().group_by('a').agg(pl.len()).collect()",
        ),
        # It starts some of the threads only.
        ("import holdfast.persist", "pl.DataFrame({'a': range(10_000)}).sort('a')"),
        ("", "pl.DataFrame({'a': range(10_000)}).lazy().group_by('a').agg(pl.len()).collect()"),
    ],
)
def test_the_parent_has_used_polars_by_itself(ran: Callable[[str], str], imported: str, use: str) -> None:
    assert ran(f"import polars as pl; {imported}\n{use}\nprint(in_fork(0))") == "[False]"


def test_a_child_uses_polars_where_its_parent_has_not(ran: Callable[[str], str]) -> None:
    assert ran("import polars, holdfast.persist; opened().close(); print(in_fork(0))") == "[True]"
    assert ran("print(in_fork(10_000), in_fork(20_000))") == "[True] [True]"


def test_one_process_uses_polars_whatever_was_imported_first(ran: Callable[[str], str]) -> None:
    assert ran("import polars; print(work(0))") == "True"
    assert ran("print(work(10_000)); os.fork() or os._exit(0); os.wait(); print(work(20_000))") == (
        "True\nTrue"
    )
