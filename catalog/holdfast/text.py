"""Makes texts that others wrote fit for messages, statuses and tables."""


def cut(text: str, most: int) -> str:
    """Return `text` with at most `most` characters. A longer text is cut, and ends with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def one_line(text: str) -> str:
    """Return `text` on one line, with control characters escaped, so that a terminal shows them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
