"""What an error says to do next, where Spark takes only the text of its traceback from a Python process."""

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import HoldfastError


@contextmanager
def telling_hints() -> Iterator[None]:
    """Put the hint of an error of Holdfast on a line of its own after its message."""
    try:
        yield
    except HoldfastError as error:
        if error.hint:
            error.add_note(f"hint: {error.hint}")
        raise
