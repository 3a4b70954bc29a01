"""Texts for messages, statuses and tables: texts of others are made fit, and errors name their subject."""

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import BadInput


def cut(text: str, most: int) -> str:
    """Return `text` with at most `most` characters. A longer text is cut, and ends with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def one_line(text: str) -> str:
    """Return `text` on one line, with control characters escaped, so that a terminal shows them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def count(number: int, what: str) -> str:
    """A number with its noun, in the plural unless it is 1."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@contextmanager
def naming(what: str) -> Iterator[None]:
    """A `BadInput` of the block names `what` first, such as "table orders", unless it does so already."""
    try:
        yield
    except BadInput as error:
        if not str(error).startswith((f"{what}:", f"{what} ")):
            error.args = (f"{what}: {error}",)
        raise
