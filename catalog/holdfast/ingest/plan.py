"""What one step reads: ranges of the source within the limits of the step. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from holdfast.ingest.source import Range


def plan(found: Sequence[Range], max_rows: int, max_bytes: int) -> list[Range]:
    """Choose from the ranges, oldest first, until a limit is reached. Always chooses something if it can.

    Ranges that can be split share the rows, so that no partition waits for another. The limit of bytes is
    for ranges whose size is known. While others are read, the reader looks at the bytes itself, and in sparse
    ranges at the rows too.
    """
    divided = [each for each in found if not each.whole and not each.sparse]
    shares = dict(zip(divided, _shares([each.end - each.begin for each in divided], max_rows), strict=True))
    chosen: list[Range] = []
    size = 0
    for each in found:
        if each.whole:
            if chosen and size + each.size_bytes > max_bytes:
                break
            size += each.size_bytes
            chosen.append(each)
        elif each.sparse:
            chosen.append(each)
        elif share := shares[each]:
            chosen.append(replace(each, end=each.begin + share))
        elif each.begin == each.end:
            chosen.append(each)
    return chosen


def _shares(lengths: Sequence[int], most: int) -> list[int]:
    """Divide `most` evenly. What a short one leaves goes to the others."""
    shares = [0] * len(lengths)
    left = most
    for done, index in enumerate(sorted(range(len(lengths)), key=lambda index: lengths[index])):
        share = min(lengths[index], max(left // (len(lengths) - done), 1 if left else 0))
        shares[index] = share
        left -= share
    return shares
