"""Damage on disk: rows and pages of the SQLite file, blobs as files, and what commands print about them."""

import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.errors import CorruptBlob, HoldfastError, LocationMismatch, StorageError, VersionTooNew
from holdfast.persist import PersistClient, PersistConfig
from unit.persist.open_stores import SCHEMA, SHARD, rows

UPPER = 9
QUICK = PersistConfig(retry_deadline_s=0.0, maintenance="off", rollup_every=4, hinted_poll_interval_s=0.01)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A location with inline parts, a Parquet part and a rollup, all in the file (no WAL left)."""
    folder = tmp_path_factory.mktemp("sound") / "here"
    settings: dict[str, Any] = {"maintenance": "off", "rollup_every": 4}
    with PersistClient.open(
        f"file://{folder}", config=PersistConfig(**settings, inline_max_bytes=0)
    ) as client:
        client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(*range(50)), 0, 1)
    # It is not closed, which would write a rollup of all: the rows of the log are to matter.
    client = PersistClient.open(f"file://{folder}", config=PersistConfig(**settings))
    for time in range(1, UPPER):
        client.writer(SHARD, SCHEMA, purpose="test").compare_and_append(rows(time), time, time + 1)
        if time == 5:
            client.maintain(SHARD)
    client.location.close()
    with closing(sqlite3.connect(folder / "consensus.sqlite")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return folder


@pytest.fixture
def damaged(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "here")


def answer(folder: Path) -> Any:
    """All that a new process reads: the upper, and the contents before it."""
    with PersistClient.open(f"file://{folder}", mode="read", config=QUICK) as client:
        reader = client.reader(SHARD, purpose="test")
        upper = reader.upper()
        return upper, sorted(map(str, reader.snapshot(upper - 1).to_table().to_pylist()))


VALUES: list[Any] = ["text", "", "\udc80".encode(errors="surrogateescape"), b"", 7, 1.5, "7" * 1000]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_row_of_another_type_is_refused_with_its_key(damaged: Path, value: Any) -> None:
    with closing(sqlite3.connect(damaged / "consensus.sqlite", isolation_level=None)) as connection:
        connection.execute(
            "UPDATE consensus SET data = ? WHERE key = ? AND seqno = (SELECT max(seqno) FROM consensus"
            " WHERE key = ?)",
            (value, SHARD, SHARD),
        )
    with pytest.raises(CorruptBlob, match=f"{SHARD} log"):
        answer(damaged)


def test_text_that_is_no_unicode_is_refused(damaged: Path) -> None:
    with closing(sqlite3.connect(damaged / "consensus.sqlite", isolation_level=None)) as connection:
        connection.execute("UPDATE consensus SET data = CAST(x'ff80fe' AS TEXT) WHERE key = ?", (SHARD,))
    with pytest.raises((CorruptBlob, StorageError), match="consensus"):
        answer(damaged)


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM consensus WHERE key LIKE 's%' AND seqno = (SELECT max(seqno) - 1 FROM consensus)",
        "UPDATE consensus SET seqno = seqno + 100 WHERE key LIKE 's%'",
        "UPDATE consensus SET seqno = 'x' || seqno WHERE key LIKE 's%'",
        "UPDATE consensus SET seqno = -seqno WHERE key LIKE 's%'",
    ],
)
def test_rows_that_moved_are_refused(damaged: Path, change: str) -> None:
    with closing(sqlite3.connect(damaged / "consensus.sqlite", isolation_level=None)) as connection:
        assert connection.execute(change).rowcount > 0
    with pytest.raises(CorruptBlob, match=SHARD):
        answer(damaged)


def _flips(data: bytes, count: int) -> Iterator[bytes]:
    chance = random.Random(7)
    for _ in range(count):
        flipped = bytearray(data)
        flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        yield bytes(flipped)


def test_flipped_bits_of_the_database_file_never_give_a_wrong_answer(sound: Path, damaged: Path) -> None:
    """SQLite has no checksums of pages: the integrity check at open notices what the rows don't."""
    right = answer(sound)
    file = damaged / "consensus.sqlite"
    data = file.read_bytes()
    outcomes = set()
    for flipped in _flips(data, 150):
        for beside in damaged.glob("consensus.sqlite-*"):
            beside.unlink()
        file.write_bytes(flipped)
        try:
            found = answer(damaged)
        except HoldfastError as error:
            outcomes.add(type(error))
            continue
        assert found == right
    assert CorruptBlob in outcomes


def test_flipped_bits_of_blob_files_are_noticed(sound: Path, damaged: Path) -> None:
    right = answer(sound)
    for path in sorted((damaged / "blob").rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        for flipped in _flips(data, 15):
            path.write_bytes(flipped)
            said = path.name
            try:
                assert answer(damaged) == right
            except LocationMismatch as error:
                # The two ids differ: which one was changed can't be told.
                said = f"{error} {path.name if path.name == 'location.json' else ''}"
            except (CorruptBlob, VersionTooNew) as error:
                said = str(error)
            assert path.name in said
        path.write_bytes(data)
    assert answer(damaged) == right


def test_the_command_line_says_what_is_corrupt_and_what_to_do(damaged: Path) -> None:
    with closing(sqlite3.connect(damaged / "consensus.sqlite", isolation_level=None)) as connection:
        connection.execute("UPDATE consensus SET data = x'00' WHERE key = ?", (SHARD,))
    for arguments in (["inspect", f"file://{damaged}", SHARD], ["inspect", f"file://{damaged}"]):
        done = CliRunner().invoke(main, ["persist", *arguments])
        assert done.exit_code == CorruptBlob.exit_code
        assert done.stdout == ""
        line, hint = done.stderr.strip().splitlines()
        assert f"{SHARD} log" in line
        assert "is corrupt" in line
        assert "persist verify" in hint


def test_the_command_line_says_it_of_the_database_file_too(damaged: Path) -> None:
    (damaged / "consensus.sqlite").write_bytes(b"not a database at all" * 400)
    done = CliRunner().invoke(main, ["persist", "inspect", f"file://{damaged}"])
    assert done.exit_code == CorruptBlob.exit_code
    line, hint = done.stderr.strip().splitlines()
    assert "consensus.sqlite is corrupt" in line
    assert "persist recover" in hint


LENGTHS = """
import resource
import sys
import time

resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
import pyarrow as pa
from holdfast.errors import CorruptBlob, VersionTooNew
from holdfast.persist import Schema
from holdfast.persist.rows.part import decode_inline, decode_parquet, encode_inline, encode_parquet

schema = Schema.of({"k": "int64"}, {"v": "string?"})
table = pa.table({"k": [1, 2], "v": ["a", None], "_time": pa.array([3, 4], pa.uint64()),
                  "_diff": pa.array([1, 1], pa.int64())}).cast(schema.arrow_updates)
made = [(encode_inline(table.to_batches()[0]), decode_inline),
        (encode_parquet(schema, 1, table), decode_parquet)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
refused = 0
for data, decode in made:
    for size in (2**60, 2**40, 2**31 - 1):
        for at in range(0, len(data) - 8, 4 if decode is decode_inline else 3):
            bad = data[:at] + size.to_bytes(8, "little") + data[at + 8:]
            try:
                decode(bad, schema, key="here")
            except (CorruptBlob, VersionTooNew):
                refused += 1
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert refused > 500, refused
assert grown < 500_000, f"{grown} KiB for files of some KiB"
"""


def test_lengths_that_lie_neither_fill_the_memory_nor_break(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LENGTHS], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
