"""A dump may have any length and source. A line without an end is refused before it fills the memory."""

import io
import tracemalloc

import pytest

from holdfast.catalog.objects.json import DumpEntry, read_dump
from holdfast.errors import BadInput

_MIB = 1 << 20


class Endless(io.TextIOBase):
    """A stand-in for a file of any size: a beginning, and then one character for ever."""

    def __init__(self, beginning: str, then: str) -> None:
        self._beginning = beginning
        self._then = then

    def read(self, size: int | None = -1) -> str:
        assert size is not None
        assert size > 0
        found, self._beginning = self._beginning[:size], self._beginning[size:]
        return found or self._then * size


@pytest.mark.parametrize(
    ("beginning", "what"),
    [
        ('{"', "the name of an object type"),
        ('{"config": [{"key": {"key": "', "an object of config"),
        ('{"config": [{"key": ', "an object of config"),
    ],
)
@pytest.mark.parametrize("then", ["x", "[", " "])
def test_an_object_without_an_end_is_refused(beginning: str, what: str, then: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match=f"{what} in the dump is longer than 67,108,864 characters"):
            list(read_dump(Endless(beginning, then)))  # type: ignore[arg-type]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 512 * _MIB


def test_an_object_of_some_mebibytes_is_read() -> None:
    text = "x" * (20 * _MIB)
    dump = io.StringIO(f'{{"settings": [{{"key": {{"name": "{text}"}}, "value": {{}}}}]}}')
    assert [*read_dump(dump)] == ["settings", DumpEntry({"name": text}, {})]
