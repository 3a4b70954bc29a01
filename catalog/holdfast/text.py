"""Shortens texts that others wrote, for messages and statuses."""


def cut(text: str, most: int) -> str:
    """Return `text` with at most `most` characters. A longer text is cut, and ends with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
