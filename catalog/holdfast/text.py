"""Texts that others wrote, as messages and statuses show them."""


def cut(text: str, most: int) -> str:
    """`text` in at most `most` characters; one that is longer ends with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
