"""Writers of one shard are killed at seeded random moments. No acknowledged write is lost.

`make soak` kills more writers.
"""

from pathlib import Path

import pytest

from crash.campaign import LAST_APPENDS, WRITERS, Campaign, Place
from crash.nursery import Nursery
from crash.oracle import Answer

KILLS = 20
MOST_CONTROLS = 60
PAIRS = [
    pytest.param("file+sqlite"),
    pytest.param("file+postgres", marks=[pytest.mark.postgres, pytest.mark.long]),
    pytest.param("s3+postgres", marks=[pytest.mark.postgres, pytest.mark.s3]),
    pytest.param("s3+s3", marks=[pytest.mark.s3, pytest.mark.long]),
]


@pytest.mark.parametrize("place", PAIRS, indirect=True)
@pytest.mark.long
def test_killed_writers_lose_nothing_that_they_were_told(place: Place, tmp_path: Path) -> None:
    with Nursery(tmp_path) as nursery:
        campaign = Campaign(place, nursery, seed=1)
        campaign.kill_and_restart(KILLS)
        campaign.check()
    answers = [attempt.answer for attempt in campaign.attempts]
    assert answers.count(Answer.DONE) >= WRITERS * LAST_APPENDS
    assert Answer.NONE in answers, "no kill met an append"


@pytest.mark.parametrize("place", ["file+sqlite"], indirect=True)
def test_an_acknowledgement_before_the_commit_is_found(place: Place, tmp_path: Path) -> None:
    """The negative control: a writer that says that it is done, then does it, and is killed in between."""
    with Nursery(tmp_path) as nursery:
        campaign = Campaign(place, nursery, seed=2, writers=1)
        for _ in range(MOST_CONTROLS):
            life = campaign.start("w0", bug="early")
            next(note for note in life.notes() if "answer" in note)
            campaign.end("w0", life, kill=True)
            if campaign.upper() - 1 < len(campaign.attempts):
                break
        with pytest.raises(AssertionError, match="was acknowledged and is not there"):
            campaign.check()
