"""What a pipeline waits for is shown once, and its end too."""

import time

import pytest

from holdfast.ingest.waits import Stopped, Waits


def test_each_text_is_shown_once_and_the_end_once() -> None:
    said: list[str] = []
    waits = Waits(said.append)
    for what in ("", "a waits", "a waits", "b waits", "", ""):
        waits.show(what)
    assert said == ["a waits", "b waits", "going on after 0 s"]


def test_a_server_that_is_away_for_a_moment_is_not_shown() -> None:
    said: list[str] = []
    waits = Waits(said.append)
    waits.away("Kafka", "refused", time.monotonic())
    waits.back("Kafka")
    assert said == []
    long_ago = time.monotonic() - 30
    for _ in range(3):
        waits.away("Kafka", "refused", long_ago)
    waits.back("Postgres")
    assert said == ["waiting for Kafka: refused"]
    waits.back("Kafka")
    waits.back("Kafka")
    assert said == ["waiting for Kafka: refused", "going on after 30 s"]


def test_a_server_that_is_away_again_is_shown_again() -> None:
    said: list[str] = []
    waits, long_ago = Waits(said.append), time.monotonic() - 30
    waits.away("Kafka", "refused", long_ago)
    waits.show("")
    waits.away("Kafka", "refused", long_ago)
    waits.show("b waits")
    # The server is back, and b still waits.
    waits.back("Kafka")
    waits.show("")
    (first, second, third, fourth, last) = said
    assert first == third == "waiting for Kafka: refused"
    assert second.startswith("going on after 30 s")
    assert (fourth, last[:11]) == ("b waits", "going on af")


def test_a_pause_ends_the_step_if_the_pipeline_is_to_end() -> None:
    waits, asked = Waits(), list[float]()
    waits.pause(0)

    def stopped(seconds: float) -> bool:
        asked.append(seconds)
        return seconds > 1

    waits.stopped = stopped
    waits.pause(1)
    with pytest.raises(Stopped):
        waits.pause(2)
    assert asked == [1, 2]
