"""What of a Secret's values may be read in a log line."""

import base64

from holdfast_operator.reconcile.credentials import decoded
from holdfast_operator.runtime import logging as logs


def test_passwords_are_hidden_and_common_words_are_not() -> None:
    given = {"user": "postgres", "password": "opensesame", "AWS_SECRET_ACCESS_KEY": "abracadabra"}
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in given.items()}
    assert decoded({"data": encoded}) == given
    assert logs.redact("can't open postgresql://host/db") == "can't open postgresql://host/db"
    told = logs.redact(f"opensesame abracadabra {encoded['password']}")
    assert told == "*** *** ***"
