"""The fixture `own_records` has what the test itself logs, and no other test."""

import logging
import threading
from collections.abc import Callable

import pytest


def test_what_threads_of_other_tests_log_is_not_of_this_test(request: pytest.FixtureRequest) -> None:
    begin, logged = threading.Event(), threading.Event()

    def other() -> None:
        begin.wait(60)
        logging.getLogger("holdfast").warning("of another test")
        logged.set()

    thread = threading.Thread(target=other)
    thread.start()
    own_records: Callable[[], list[logging.LogRecord]] = request.getfixturevalue("own_records")
    begin.set()
    assert logged.wait(60)
    thread.join()
    here = threading.Thread(target=logging.getLogger("holdfast").warning, args=("of a thread of this test",))
    here.start()
    here.join()
    logging.getLogger("holdfast").warning("of this test")
    assert [each.getMessage() for each in own_records()] == ["of a thread of this test", "of this test"]
    caplog: pytest.LogCaptureFixture = request.getfixturevalue("caplog")
    assert caplog.messages[0] == "of another test"
