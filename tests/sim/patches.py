"""Applies unified diffs without `patch`. A hunk is found by its lines, not by their numbers.

- The old lines of a hunk (its context and the lines that it removes) must occur in the file. If they occur
  more than once, the place nearest to the hunk's line number counts.
- The outermost lines of context may have changed. If all of them have, the rest must occur exactly once.
- A hunk that is not found is an error that names it. Then nothing is applied.
"""

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")
_CONTEXT = 3


class DoesNotApply(Exception):
    """The code has changed where the patch wants to change it."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """From about line `line` (from 1) of `path`, `old` gives way to `new`."""

    path: str
    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]


def parse(text: str) -> tuple[str, tuple[Hunk, ...]]:
    """The story of a patch (its first line) and its hunks. Raises `ValueError` where it is no such patch."""
    lines = text.splitlines()
    if not lines or lines[0].startswith(("---", "diff ")) or not lines[0].strip():
        raise ValueError("its first line must tell in words what is wrong with the mutant")
    path, hunks = "", []
    for line in lines[1:]:
        if line.startswith("--- "):
            continue
        if line.startswith("+++ "):
            path = line.split()[1].removeprefix("b/")
        elif found := _HUNK.match(line):
            hunks.append(Hunk(path, int(found[1]), (), ()))
        elif hunks and line[:1] in (" ", "-", "+", ""):
            kind, rest, last = line[:1] or " ", line[1:], hunks[-1]
            old = last.old + ((rest,) if kind in " -" else ())
            new = last.new + ((rest,) if kind in " +" else ())
            hunks[-1] = replace(last, old=old, new=new)
    if not hunks:
        raise ValueError("it has no hunk (@@ -line,count +line,count @@)")
    return lines[0].strip(), tuple(hunks)


def apply_hunks(read: Callable[[str], str], hunks: Sequence[Hunk]) -> dict[str, str]:
    """The new text of each file that the hunks change, by path. Raises `DoesNotApply`."""
    files: dict[str, list[str]] = {}
    shifts: dict[str, int] = {}
    for hunk in hunks:
        if hunk.path not in files:
            try:
                files[hunk.path] = read(hunk.path).splitlines()
            except FileNotFoundError:
                raise DoesNotApply(f"there is no file {hunk.path} any more") from None
        lines = files[hunk.path]
        wanted = hunk.line - 1 + shifts.get(hunk.path, 0)
        hunk, places = locate(lines, hunk)
        if not places:
            gone = next((line for line in hunk.old if line.strip() and line not in lines), hunk.old[0])
            raise DoesNotApply(
                f"{hunk.path} has no longer what hunk @@ -{hunk.line} @@ changes: {gone.strip()!r}"
            )
        place = min(places, key=lambda place: abs(place - wanted))
        lines[place : place + len(hunk.old)] = hunk.new
        shifts[hunk.path] = place - hunk.line + 1 + len(hunk.new) - len(hunk.old)
    return {path: "\n".join(lines) + "\n" for path, lines in files.items()}


def locate(lines: Sequence[str], hunk: Hunk) -> tuple[Hunk, list[int]]:
    """Where the hunk fits, and the part of it that does: with as much of its context as is still there."""
    for less in range(_CONTEXT + 1):
        part = _inner(hunk, less)
        places = find(lines, part.old)
        if len(places) == 1 or (places and less < _CONTEXT):
            return part, places
    return hunk, []


def _inner(hunk: Hunk, less: int) -> Hunk:
    """The hunk without up to `less` of the lines of context at its ends."""
    same = [old == new for old, new in zip(hunk.old, hunk.new, strict=False)]
    first = min(less, [*same, False].index(False))
    same = [old == new for old, new in zip(reversed(hunk.old), reversed(hunk.new), strict=False)]
    last = min(less, [*same, False].index(False), len(hunk.old) - first, len(hunk.new) - first)
    return Hunk(
        hunk.path,
        hunk.line + first,
        hunk.old[first : len(hunk.old) - last],
        hunk.new[first : len(hunk.new) - last],
    )


def find(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Where `wanted` stands in `lines`: the indexes of its first line."""
    size = len(wanted)
    if not size:
        return []
    return [
        start for start in range(len(lines) - size + 1) if tuple(lines[start : start + size]) == tuple(wanted)
    ]


def render(story: str, before: dict[str, str], after: dict[str, str]) -> str:
    """The patch that makes `after` of `before` (texts by path), with its story."""
    lines = [story]
    for path in sorted(after):
        diff = difflib.unified_diff(
            before[path].splitlines(),
            after[path].splitlines(),
            f"a/{path}",
            f"b/{path}",
            n=_CONTEXT,
            lineterm="",
        )
        lines += diff
    return "\n".join(lines) + "\n"
