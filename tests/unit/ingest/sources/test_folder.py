"""Files of a folder are read once, as they were when they were bound."""

import json
import os
import re
import socket
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.collections import StorageController
from holdfast.errors import BadInput, SourceChanged, SourceStalled
from holdfast.ingest import Ingestion, ingest_source, parse
from holdfast.ingest.kept import errors, offsets
from holdfast.ingest.source import Binding, Piece, Range
from holdfast.ingest.sources import files
from holdfast.ingest.sources import folder as folders
from holdfast.ingest.sources.folder import Folder
from holdfast.ingest.waits import Waits
from holdfast.persist import PersistClient, Schema
from holdfast.persist.rows.schema import DIFF
from unit.collections.stores import Stores
from unit.ingest.pipelines import created, drained, pipeline, rows

SCHEMA = Schema.of({"id": "int64"}, {"name": "string?"})


def folder(path: Path, **changed: Any) -> Folder:
    return Folder(path, waits=Waits(), **{"pattern": "*", "whole": False, "on_changed": "error", **changed})


def names(source: Folder, bound: dict[str, Binding] | None = None) -> list[str]:
    return [each.partition for each in source.probe(bound or {})]


def test_it_finds_files_oldest_first_and_no_unfinished_ones(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "_hidden").mkdir()
    for number, name in enumerate(["b", "sub/a", "c.json", ".x", "_y", "z.tmp", "_hidden/file"]):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, ns=(number, number))
    assert names(folder(tmp_path)) == ["b", "sub/a", "c.json"]
    assert names(folder(tmp_path, pattern="*.json")) == ["c.json"]
    assert names(folder(tmp_path, pattern="sub/*")) == ["sub/a"]


def test_a_name_that_is_not_utf8_stalls_until_it_is_renamed(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    wrong = tmp_path / os.fsdecode(b"\xff\xc3\xa9.json")
    wrong.touch()
    with pytest.raises(
        SourceStalled, match=r"the name of file \\xff\u00e9\.json is not text in UTF-8"
    ) as raised:
        names(folder(tmp_path))
    assert "rename it" in str(raised.value.hint)
    assert names(folder(tmp_path, pattern="a*")) == ["a.json"]
    wrong.rename(tmp_path / "b.json")
    assert names(folder(tmp_path)) == ["a.json", "b.json"]


def lines(path: Path, contents: bytes, *, raw: bool = False) -> list[tuple[int, bytes]]:
    (path / "file").write_bytes(contents)
    source = folder(path, raw=raw)
    (wanted,) = source.probe({})
    pieces: list[Piece] = list(source.read(wanted))
    return [(row["position"], row["value"]) for piece in pieces for row in piece.messages.to_pylist()]


@pytest.mark.parametrize(
    ("contents", "found"),
    [
        (b"", []),
        (b"a", [(1, b"a")]),
        (b"a\nb\n", [(1, b"a"), (2, b"b")]),
        (b"\n\r\n a \r\n\nb", [(3, b"a"), (5, b"b")]),
        (b"\xff\n\xfe", [(1, b"\xff"), (2, b"\xfe")]),
        (b"\xef\xbb\xbfa\nb", [(1, b"a"), (2, b"b")]),
    ],
)
def test_lines_are_numbered_and_blank_ones_skipped(
    tmp_path: Path, contents: bytes, found: list[tuple[int, bytes]]
) -> None:
    assert lines(tmp_path, contents) == found


@pytest.mark.parametrize(
    ("contents", "found"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"  a \r\n\n\tb\x00\n \nc", [b"  a ", b"", b"\tb\x00", b" ", b"c"]),
        (b"a\r\r\n\r\nb\r", [b"a\r", b"", b"b\r"]),
        (b"\xff \n", [b"\xff "]),
    ],
)
def test_raw_lines_lose_only_their_ends(tmp_path: Path, contents: bytes, found: list[bytes]) -> None:
    assert lines(tmp_path, contents, raw=True) == list(enumerate(found, 1))


def test_raw_lines_are_bound_like_others(tmp_path: Path) -> None:
    """A rendition of one format can follow one of the other, also one of an earlier version."""
    (tmp_path / "file").write_bytes(b" a \n\n\tb\n")
    (wanted,) = folder(tmp_path).probe({})
    (raw,), (stripped,) = folder(tmp_path, raw=True).read(wanted), folder(tmp_path).read(wanted)
    assert raw.counted == stripped.messages
    assert (raw.messages.num_rows, stripped.counted) == (3, None)


def test_a_file_that_is_being_written_waits(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text('{"id":1}\n')
    source = folder(tmp_path)
    (wanted,) = source.probe({})
    with file.open("a") as more:
        more.write('{"id":2}\n')
    with pytest.raises(holdfast.SourceChanged, match="being written"):
        list(source.read(wanted))
    (again,) = source.probe({})
    assert [piece.messages.num_rows for piece in source.read(again)] == [2]
    file.unlink()
    with pytest.raises(holdfast.SourceChanged, match="is gone"):
        list(source.read(again))


def fed(path: Path, **files: Any) -> Counter[tuple[Any, ...]]:
    block = {"files": {"path": str(path / "in"), **files}, "format": {"json": {}}}
    ingest_source(f"file://{path}/store", "orders", block, schema=SCHEMA, once=True)
    with holdfast.table(f"file://{path}/store", "orders") as table:
        return Counter(tuple(row.values()) for row in table.read().to_pylist())


def test_a_changed_file_is_an_error_and_never_other_rows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "a"
    file.write_text('{"id":1}\n')
    assert fed(tmp_path) == Counter({(1, None): 1})
    file.write_text('{"id":1}\n{"id":2}\n')
    (tmp_path / "in" / "b").write_text('{"id":3}\n')
    assert fed(tmp_path) == Counter({(1, None): 1, (3, None): 1})
    assert fed(tmp_path) == Counter({(1, None): 1, (3, None): 1})
    from holdfast.collections import StorageController
    from holdfast.ingest.kept import errors
    from holdfast.persist import PersistClient

    with PersistClient.open(f"file://{tmp_path}/store") as client:
        found = errors(StorageController(client), "orders")[1].to_pylist()
    assert [(each["partition"], each["kind"]) for each in found] == [("a", "changed")]


@pytest.mark.parametrize("envelope", ["None", "Upsert"])
def test_a_file_that_changes_again_and_again_is_one_error(tmp_path: Path, envelope: str) -> None:
    (tmp_path / "in").mkdir()
    client = Stores().open()
    created(client)

    def feed() -> Ingestion:
        return pipeline(client, folder(tmp_path / "in"), envelope=envelope, onError={"collect": {"limit": 2}})

    one = feed()
    for count in range(1, 4):
        for name in ("a", "b"):
            (tmp_path / "in" / name).write_text('{"id":1}\n' * count)
        drained(one)
    # Another process finds what the first one has stored.
    (tmp_path / "in" / "a").write_text("{}")
    drained(feed())
    found = errors(StorageController(client), "orders")[1].to_pylist()
    known = [(each["partition"], each["kind"], each[DIFF]) for each in found]
    assert known == [("a", "changed", 1), ("b", "changed", 1)]


def test_a_bad_record_of_a_file_has_no_key_and_stays_an_error(tmp_path: Path) -> None:
    from holdfast.collections import StorageController
    from holdfast.ingest.kept import errors
    from holdfast.persist import PersistClient

    (tmp_path / "in").mkdir()
    block = {"files": {"path": str(tmp_path / "in")}, "format": {"json": {}}, "envelope": "Upsert"}
    for name, line in (
        ("a", '{"id":1,"name":"x"}'),
        ("b", '{"id":1,"name":7}'),
        ("c", '{"id":1,"name":"y"}'),
    ):
        (tmp_path / "in" / name).write_text(line)
        ingest_source(f"file://{tmp_path}/store", "orders", block, schema=SCHEMA, once=True)
        with holdfast.table(f"file://{tmp_path}/store", "orders") as table:
            assert table.read()["name"].to_pylist() == ["y" if name == "c" else "x"]
    with PersistClient.open(f"file://{tmp_path}/store") as client:
        found = errors(StorageController(client), "orders")[1].to_pylist()
    assert [(each["partition"], each["key"]) for each in found] == [("b", None)]


def test_a_file_may_be_deleted_once_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text('{"id":1}\n')
    fed(tmp_path)
    (tmp_path / "in" / "a").unlink()
    (tmp_path / "in" / "b").write_text('{"id":2}\n')
    assert fed(tmp_path) == Counter({(1, None): 1, (2, None): 1})


def test_a_missing_folder_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"source folder .*/in doesn't exist or is not a folder"):
        fed(tmp_path)


@contextmanager
def as_nobody() -> Iterator[Path]:
    """A new folder, and a block that runs as nobody if the tests run as root: permissions don't bind root."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:
        if root:
            os.chown(name, 65534, -1)
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            if root:
                os.seteuid(0)


@pytest.mark.parametrize("lexical", [False, True])
@pytest.mark.parametrize(("mode", "unread"), [(0o000, "closed"), (0o444, "closed/file")])
def test_a_folder_that_can_not_be_read_is_not_passed_over(lexical: bool, mode: int, unread: str) -> None:
    """Its names can't be listed, or they can, and the files can't be looked at."""
    with as_nobody() as path:
        closed = path / "closed"
        closed.mkdir()
        (closed / "file").touch()
        (path / "link.json").symlink_to(closed / "file")
        closed.chmod(mode)
        with pytest.raises(SourceStalled, match=rf"can't read {path}/({unread}|link\.json): Permission"):
            names(folder(path, lexical=lexical))
        # A link into it is no broken link, and what nobody asked for stops nobody.
        if mode == 0o444:
            with pytest.raises(SourceStalled, match=rf"can't read {path}/link\.json: Permission denied"):
                names(folder(path, pattern="*.json", lexical=lexical))
            assert names(folder(path, pattern="*.csv", lexical=lexical)) == []
        closed.chmod(0o755)
        assert names(folder(path, lexical=lexical)) == ["closed/file", "link.json"]


def test_a_file_that_can_not_be_read_stalls_the_source() -> None:
    with as_nobody() as path:
        (path / "file").touch(mode=0o000)
        source = folder(path)
        (wanted,) = source.probe({})
        with pytest.raises(SourceStalled, match=rf"can't read {path}/file: Permission denied") as stalled:
            list(source.read(wanted))
        assert "the other files wait" in str(stalled.value.hint)


# What is no file


@pytest.mark.parametrize("lexical", [False, True])
def test_what_leads_to_no_file_is_left_out_and_shown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lexical: bool
) -> None:
    path = tmp_path / "in"
    (path / "sub").mkdir(parents=True)
    monkeypatch.chdir(path)
    (tmp_path / "elsewhere").write_text("x")
    for name in ("b.json", "sub/d.json"):
        Path(name).write_text("x")
    for before in ("a", "c", "sub/e"):
        Path(f"{before}-broken.json").symlink_to("nothing")
        Path(f"{before}-loop.json").symlink_to(path / f"{before}-loop.json")
        Path(f"{before}-folders.json").symlink_to(path)
        os.mkfifo(f"{before}-pipe.json")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{before}-socket.json")
    Path("d-link.json").symlink_to(tmp_path / "elsewhere")
    Path("other.csv").symlink_to("nothing")
    said: list[str] = []
    source = Folder(path, "*.json", Waits(said.append), whole=False, on_changed="error", lexical=lexical)
    bound = {"b.json": Binding(1, next(folder(path)._found(["b.json"])).identity)}
    for _ in range(2):
        assert sorted(names(source, bound)) == ["d-link.json", "sub/d.json"]
    left = [f"left out in file://{path}: a-broken.json (a broken link) and 14 more"]
    assert said == left
    for each in path.rglob("*-*.json"):
        if each.name not in ("a-pipe.json", "d-link.json"):
            each.unlink()
    for _ in range(2):
        assert sorted(names(source, bound)) == ["d-link.json", "sub/d.json"]
    assert said == [*left, f"left out in file://{path}: a-pipe.json (a named pipe)"]


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: path.symlink_to(path), "a broken link"),
        (lambda path: path.symlink_to("a" * 256), "a broken link"),
        (lambda path: path.symlink_to(path.parent), "a link to a folder"),
        (lambda path: path.symlink_to("/dev/null"), "a device"),
        (os.mkfifo, "a named pipe"),
    ],
)
def test_what_is_left_out_is_named(tmp_path: Path, make: Callable[[Path], None], kind: str) -> None:
    make(tmp_path / "a")
    said: list[str] = []
    assert not Folder(tmp_path, "*", Waits(said.append), whole=False, on_changed="error").probe({})
    assert said[0] == f"left out in file://{tmp_path}: a ({kind})"


@pytest.mark.parametrize("lexical", [False, True])
def test_a_file_that_is_gone_after_it_was_listed_is_left_out(tmp_path: Path, lexical: bool) -> None:
    class Vanishing(Folder):
        def _names(self) -> Iterator[str]:
            for name in super()._names():
                if name != "c":
                    (tmp_path / name).unlink()
                yield name

    said: list[str] = []
    source = Vanishing(tmp_path, "*", Waits(said.append), whole=False, on_changed="error", lexical=lexical)
    for name in ("a", "c", "d"):
        (tmp_path / name).write_text("x")
    # "a" is before the last one that is bound.
    assert names(source, {"b": Binding(1)}) == ["c"]
    assert said == []


def test_a_source_folder_that_is_a_loop_of_links_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.symlink_to(path)
    with pytest.raises(BadInput, match=r"source folder .*/in doesn't exist or is not a folder"):
        fed(tmp_path)


def test_a_file_that_something_else_replaced_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "file"

    def serve() -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(file))

    for replace in (lambda: os.mkfifo(file), serve, file.mkdir, lambda: file.symlink_to(file)):
        file.write_text("x")
        source = folder(tmp_path)
        (wanted,) = source.probe({})
        file.unlink()
        replace()
        with pytest.raises(SourceChanged, match=r"file file in .* is (being written|gone)"):
            list(source.read(wanted))
        assert names(source) == []
        if file.is_dir():
            file.rmdir()
        else:
            file.unlink()


# Odd names


ODD = ["new\nline", "tab\tx", "\x1b[31mred", "\x07", "a b+c%41", "\u202eleft", "\U0001f600", "back\\n"]


@pytest.mark.parametrize("order", ["Modified", "Lexical"])
def test_any_name_in_utf8_is_kept_as_it_is(tmp_path: Path, order: str) -> None:
    into = tmp_path / "in"
    into.mkdir()
    for number, name in enumerate(ODD):
        (into / name).write_text(f'{{"id": {number}}}\nbad\n')
    block = {
        "files": {"path": str(into), "order": order},
        "format": {"json": {}},
        "include": {"partition": "name"},
    }
    for _ in range(2):
        ingest_source(f"file://{tmp_path}/store", "orders", block, schema=SCHEMA, once=True)
    with PersistClient.open(f"file://{tmp_path}/store") as client:
        controller = StorageController(client)
        for kept in (offsets, errors):
            assert sorted(kept(controller, "orders")[1]["partition"].to_pylist()) == sorted(ODD)
    with holdfast.table(f"file://{tmp_path}/store", "orders") as table:
        assert {row["name"]: row["id"] for row in table.read().to_pylist()} == {
            name: number for number, name in enumerate(ODD)
        }


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"new\nline\xff", r"new\nline\xff"),
        (b"\x1b[31m\xc3\xa9\xe9", r"\x1b[31mé\xe9"),
    ],
)
@pytest.mark.parametrize("lexical", [False, True])
def test_messages_escape_what_a_terminal_would_obey(
    tmp_path: Path, name: bytes, shown: str, lexical: bool
) -> None:
    (tmp_path / os.fsdecode(name)).touch()
    with pytest.raises(SourceStalled, match=re.escape(f"the name of file {shown} is not text in UTF-8")):
        names(folder(tmp_path, lexical=lexical))
    if lexical:
        # Also if it is before the last one that was read.
        with pytest.raises(SourceStalled, match=re.escape(f"the name of file {shown} is not text in UTF-8")):
            names(folder(tmp_path, lexical=lexical), {"\U0001f600": Binding(0)})


def test_a_late_name_is_shown_on_one_line(tmp_path: Path) -> None:
    (tmp_path / "new\nline").touch()
    with pytest.raises(SourceStalled, match=r"file new\\nline in .* its name comes before z\\x1b\[31m,"):
        names(folder(tmp_path, lexical=True), {"z\x1b[31m": Binding(0)})


def test_a_path_that_no_folder_can_have_is_refused() -> None:
    for path in ("a\0b", os.fsdecode(b"\xff"), "\ud800"):
        with pytest.raises(BadInput, match=r"source\.files\.path has a NUL, or a character that UTF-8 does"):
            parse({"files": {"path": path}, "format": {"json": {}}})


# The order of names


def read_once(path: Path, into: Path, **files: Any) -> list[int]:
    """Feed as a new process. Returns the ids in the collection."""
    block = {"files": {"path": str(path), "order": "Lexical", **files}, "format": {"json": {}}}
    ingest_source(f"file://{into}/store", "orders", block, schema=SCHEMA, once=True)
    with holdfast.table(f"file://{into}/store", "orders") as table:
        return sorted(table.read()["id"].to_pylist())


def write(path: Path, *ids: int) -> None:
    for id_ in ids:
        (path / f"{id_:03}.json").write_text(json.dumps({"id": id_}))


def test_lexical_files_are_looked_for_after_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_LISTED", 3)
    monkeypatch.setattr(folders, "MOST_LISTED", 3)
    path = tmp_path / "in"
    path.mkdir()
    write(path, *range(8))
    (path / "sub").mkdir()
    (path / "sub/a.json").write_text('{"id": 100}')
    (path / ".hidden").touch()
    assert names(folder(path, lexical=True)) == ["000.json", "001.json", "002.json"]
    assert read_once(path, tmp_path) == [*range(8), 100]
    # What was read may be there, change, or be deleted.
    (path / "000.json").unlink()
    write(path, 1)
    assert read_once(path, tmp_path) == [*range(8), 100]
    (path / "sub/b.json").write_text('{"id": 101}')
    assert read_once(path, tmp_path) == [*range(8), 100, 101]


def test_a_lexical_file_that_comes_late_stalls(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.mkdir()
    write(path, 1, 3)
    read_once(path, tmp_path)
    write(path, 2)
    with pytest.raises(SourceStalled, match=r"file 002.json in .* was not read, .* comes before 003.json"):
        read_once(path, tmp_path)
    (path / "002.json").rename(path / "004.json")
    assert read_once(path, tmp_path) == [1, 2, 3]
    # That is also so for one that was there before the order was set, and not for one that was ignored.
    (path / "000.csv").touch()
    assert read_once(path, tmp_path, pattern="*.json") == [1, 2, 3]


def test_a_lexical_file_that_is_being_written_keeps_the_later_ones_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in"
    path.mkdir()
    write(path, 1, 2, 3)
    true = Folder._contents
    failed: list[Range] = []

    def contents(self: Folder, wanted: Range) -> bytes:
        if wanted.partition == "002.json" and not failed:
            failed.append(wanted)
            raise SourceChanged("it is being written")
        return true(self, wanted)

    monkeypatch.setattr(Folder, "_contents", contents)
    assert read_once(path, tmp_path) == [1, 2, 3]
    assert failed


def test_lexical_files_are_forgotten_though_they_are_there(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.mkdir()
    client = Stores().open()
    created(client)
    block = {"path": str(path), "order": "Lexical", "forgetAfter": "1ms"}

    def feed() -> None:
        ingestion = pipeline(
            client, folder(path, lexical=True), generator=None, files=block, run={"progressInterval": "1ms"}
        )
        for _ in range(3):
            ingestion.step()
            time.sleep(0.01)

    write(path, 1, 2, 3)
    feed()
    table = offsets(StorageController(client), "orders")[1]
    found = dict(zip(table["partition"].to_pylist(), table["position"].to_pylist(), strict=True))
    assert found == {f"file://{path}": 2, "003.json": len('{"id": 3}')}
    # They are not read again.
    feed()
    assert sum(rows(client).values()) == 3
    write(path, 4)
    feed()
    assert sum(rows(client).values()) == 4


def test_many_files_need_an_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_LISTED", 3)
    write(tmp_path, 1, 2, 3)
    assert len(names(folder(tmp_path))) == 3
    write(tmp_path, 4)
    with pytest.raises(SourceStalled, match="has more than 3 files that match pattern") as stalled:
        names(folder(tmp_path))
    assert "set order: Lexical in source.files" in str(stalled.value.hint)


class Million(Folder):
    """A stand-in for a folder with a million files. Only its list of names is not real."""

    def _names(self) -> Iterator[str]:
        return (f"{number * 7919 % 1_000_000:07}.json" for number in range(1_000_000))


@pytest.mark.long
def test_an_idle_step_with_a_million_files_takes_little(tmp_path: Path) -> None:
    source = Million(tmp_path, "*", Waits(), whole=False, on_changed="error", lexical=True)
    bound = {f"{number:07}.json": Binding(1) for number in range(999_990)}
    source.passed = "0900000.json"
    for number in range(999_990, 1_000_000):
        (tmp_path / f"{number:07}.json").touch()
    began = time.process_time()
    assert len(source.probe(bound)) == 10
    seconds = time.process_time() - began
    tracemalloc.start()
    source.probe(bound)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"a million files: {seconds:.2f} CPU s, {peak / 1e6:.1f} MB")
    assert seconds < 10
    assert peak < 20e6
