"""`holdfast catalog kept` shows and dumps what an upgrade keeps, and drops it if the user asks for it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.catalog import CATALOG_VERSION, OpenMode
from testbed.oldcatalogs import rows_of
from unit.cli.catalogs import KINDS, Place, make_place

OLD = CATALOG_VERSION - 1


@pytest.fixture(params=KINDS)
def upgraded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A catalog that somebody upgraded, and still has open."""
    place = make_place(request.param, tmp_path, request)
    openable = place.openable()
    openable.load(rows_of(OLD, items=3), holder="old", purpose="test")
    with openable.open(OpenMode.WRITABLE, holder="new", purpose="upgrades") as catalog:
        yield place
        # Nothing here fences anybody.
        catalog.confirm_leadership()
    place.close()


def test_what_an_upgrade_keeps_is_shown_dumped_and_released(upgraded: Place) -> None:
    before = upgraded.stored()
    shown = upgraded.run("kept")
    assert shown.exit_code == 0, shown.output
    heading, line = shown.stdout.splitlines()
    assert heading.split() == ["VERSION", "AS", "OF"]
    assert shown.stderr == "1 kept time\n"
    version, time = line.split()
    assert int(version) == OLD
    assert json.loads(upgraded.run("kept", "--json").stdout) == [{"version": OLD, "as_of": int(time)}]
    assert f'"value": {{"value": "{OLD}"}}' in upgraded.run("dump", "--as-of", time).stdout
    assert upgraded.stored() == before
    released = upgraded.run("kept", "--release", version)
    assert (released.exit_code, released.stdout) == (0, f"released version {OLD}, as of {time}\n")
    none = upgraded.run("kept")
    assert (none.exit_code, none.stdout, none.stderr) == (0, "", "0 kept times\n")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--release", "3"), 2, f"keeps no time of version 3\n  hint: kept versions: {OLD}"),
        (("--release", "all"), 2, "'--release'"),
        (("--release", "-1"), 2, "'--release'"),
        (("--release", str(OLD), "--json"), 2, "--release and --format json can't be used together"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_line(
    tmp_path: Path, arguments: tuple[str, ...], code: int, says: str, request: pytest.FixtureRequest
) -> None:
    place = make_place("stash in a file", tmp_path, request)
    openable = place.openable()
    openable.load(rows_of(OLD, items=3), holder="old", purpose="test")
    openable.open(OpenMode.WRITABLE, holder="new", purpose="upgrades").close()
    before = place.stored()
    refused = place.run("kept", *arguments)
    assert (refused.exit_code, refused.stdout) == (code, "")
    assert says in refused.stderr
    assert len(refused.stderr.splitlines()) <= 2
    assert place.stored() == before


def test_where_no_catalog_is_nothing_is_kept_and_nothing_made(place: Place) -> None:
    before = place.stored()
    for arguments in ((), ("--release", "15")):
        refused = place.run("kept", *arguments)
        assert refused.exit_code in {1, 3}, refused.output
        assert refused.stdout == ""
        assert place.stored() == before
