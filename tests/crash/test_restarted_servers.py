"""Servers stop and come back under writers. The writers recover without help, and nothing is lost.

During an outage that is shorter than the retry deadline, an append succeeds or has an unknown outcome. During
a longer one, a storage error says which of both is true. The next append after the outage succeeds.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from crash.campaign import Campaign, Place
from crash.nursery import Life, Nursery
from testbed.minio import Minio
from testbed.postgres import PostgresServer

SHORT_S = 0.5
"""The retry deadline of those who are to see the outage."""


@dataclass(frozen=True)
class Outage:
    """Stores, and how a server of theirs goes and comes back."""

    place: Place
    begin: Callable[[], None]
    end: Callable[[], None]


@pytest.fixture
def outage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Outage]:
    server, how = request.param.split(" ")
    if server == "postgres":
        with PostgresServer.start() as postgres:
            begin = {
                "fast": postgres.stop,
                "immediate": partial(postgres.stop, immediate=True),
                "kill": postgres.kill,
            }
            place = Place(blob=f"file://{tmp_path}/blob", consensus=postgres.url())
            yield Outage(place, begin[how], postgres.resume)
    else:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        with Minio.start() as minio:
            for name, value in minio.credentials.items():
                monkeypatch.setenv(name, value)
            blob = f"s3://{minio.make_bucket()}/shards?endpoint={minio.endpoint}"
            yield Outage(Place(blob=blob, consensus=f"sqlite://{tmp_path}/log"), minio.kill, minio.serve)


def until(lives: Sequence[Life], what: Callable[[dict[str, object]], bool], times: int = 1) -> None:
    """Read what each writer says until it has said that so often."""
    for life in lives:
        found = 0
        for note in life.notes():
            found += what(note)
            if found == times:
                break
        assert found == times, f"a writer ended early; it last said {life.lines[-1:]}"


WAYS = [
    pytest.param("postgres fast", marks=[pytest.mark.postgres, pytest.mark.long]),
    pytest.param("postgres immediate", marks=[pytest.mark.postgres, pytest.mark.long]),
    pytest.param("postgres kill", marks=pytest.mark.postgres),
    pytest.param("minio kill", marks=pytest.mark.s3),
]


def is_done(note: dict[str, object]) -> bool:
    return note.get("answer") == "done"


def tells_an_outage(note: dict[str, object]) -> bool:
    return note.get("error") in ("Determinate", "Indeterminate")


@pytest.mark.parametrize("outage", WAYS, indirect=True)
@pytest.mark.long
def test_writers_outlive_a_server_that_comes_back_at_once(outage: Outage, tmp_path: Path) -> None:
    with Nursery(tmp_path) as nursery:
        campaign = Campaign(outage.place, nursery, seed=3)
        lives = [campaign.start(writer) for writer in campaign.writers]
        until(lives, is_done, times=8)
        for _ in range(2):
            outage.begin()
            outage.end()
            until(lives, is_done, times=8)
        campaign.kill_all(lives)
        campaign.check()


@pytest.mark.parametrize("outage", [WAYS[2], WAYS[3]], indirect=True)
@pytest.mark.long
def test_writers_say_what_an_outage_did_and_go_on_after_it(outage: Outage, tmp_path: Path) -> None:
    with Nursery(tmp_path) as nursery:
        campaign = Campaign(outage.place, nursery, seed=4)
        lives = [campaign.start(writer, retry_deadline_s=SHORT_S) for writer in campaign.writers]
        until(lives, is_done, times=4)
        outage.begin()
        until(lives, tells_an_outage)
        outage.end()
        until(lives, is_done, times=4)
        campaign.kill_all(lives)
        campaign.check()
