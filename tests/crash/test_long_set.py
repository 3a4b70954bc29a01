"""The long set runs all campaigns by default and counts every death. A violation hides no other number."""

import re
from pathlib import Path
from typing import Any

import pytest

import crash.campaign
from crash.__main__ import OPERATOR, Servers, main, ordered, parsed
from crash.campaign import WRITERS, Campaign, Place
from crash.nursery import Nursery
from crash.places import PAIRS
from crash.tally import Tally, table


def no_servers() -> Servers:
    raise AssertionError("no campaign is run")


def numbers(shown: str) -> dict[str, list[int]]:
    """The rows of a table."""
    found = re.findall(r"^(\S+(?: \w+)?)((?: +\d+){6})$", shown, re.MULTILINE)
    return {name: [int(cell) for cell in cells.split()] for name, cells in found}


def test_by_default_all_pairs_are_disturbed_and_sealed_too() -> None:
    options = parsed(["--seeds", "2"])
    rows = [campaign.row for campaign in ordered(options, no_servers)]
    ways = ("appended", "sealed")
    assert sorted(rows) == sorted(2 * [*(f"{pair} {way}" for pair in PAIRS for way in ways), OPERATOR])
    assert 0 < options.disturb_every < options.kills


def test_a_campaign_is_repeated_by_what_it_prints() -> None:
    for options in (parsed([]), parsed(["--seals", "--disturb-every", "0"]), parsed(["--kills", "7"])):
        for campaign in ordered(options, no_servers):
            (again,) = ordered(parsed(campaign.again.split()), no_servers)
            assert (again.row, again.seed) == (campaign.row, campaign.seed)
            assert getattr(again.run, "keywords") == getattr(campaign.run, "keywords")  # noqa: B009


@pytest.mark.parametrize("place", ["file+sqlite"], indirect=True)
def test_the_deaths_of_all_writers_count_for_a_disturbance(place: Place, tmp_path: Path) -> None:
    times: list[None] = []
    disturbed = Place(blob=place.blob, consensus=place.consensus, disturb=lambda: times.append(None))
    with Nursery(tmp_path) as nursery:
        campaign = Campaign(disturbed, nursery, seed=5)
        campaign.kill_and_restart(2 * WRITERS, disturb_every=WRITERS - 1)
        campaign.check()
    tally = campaign.tally()
    assert (tally.kills, tally.disturbances) == (2 * WRITERS, 2 * WRITERS // (WRITERS - 1))
    assert len(times) == tally.disturbances
    assert tally.operations > 0


def test_a_violation_hides_no_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = crash.campaign.judge

    def convicting(*what: Any, tiles: bool) -> None:
        judge(*what, tiles=tiles)
        assert not tiles, "planted: an append was lost"

    monkeypatch.setattr(crash.campaign, "judge", convicting)
    arguments = ["--pairs", "file+sqlite", "--seeds", "1", "--kills", "3"]
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert "planted: an append was lost" in said.err
    assert "--pairs file+sqlite --first 100 --seeds 1 --no-seals --kills 3" in said.err
    rows = numbers(said.out)
    assert rows.keys() == {"file+sqlite appended", "file+sqlite sealed", "all"}
    appended, sealed = rows["file+sqlite appended"], rows["file+sqlite sealed"]
    assert [appended[n] for n in (0, 3, 5)] == [1, 3, 1]
    assert [sealed[n] for n in (0, 3, 5)] == [1, 3, 0]
    assert min(appended[1], sealed[1]) > 0
    assert rows["all"] == [a + b for a, b in zip(appended, sealed, strict=True)]

    monkeypatch.setattr(crash.campaign, "judge", judge)
    assert main([*arguments, "--no-seals"]) == 0
    assert numbers(capsys.readouterr().out)["all"][5] == 0


def test_a_campaign_that_can_not_begin_is_a_violation_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("no server")

    monkeypatch.setattr(crash.campaign.Place, "open", broken)
    assert main(["--pairs", "file+sqlite", "--seeds", "2", "--no-seals"]) == 1
    assert numbers(capsys.readouterr().out)["file+sqlite appended"] == [2, 0, 0, 0, 0, 2]


def test_a_table_has_a_row_for_all() -> None:
    shown = table({"a": Tally(1, 20, 3, 4, 5), "b": Tally(1, 2, 3, 4, 5, 1)})
    assert numbers(shown) == {"a": [1, 20, 3, 4, 5, 0], "b": [1, 2, 3, 4, 5, 1], "all": [2, 22, 6, 8, 10, 1]}
    assert len({len(line) for line in shown.splitlines()}) == 1
