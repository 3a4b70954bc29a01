"""The code blocks of a documentation page, and the output that the page shows for them.

- `sh`: commands. The whole page has one shell. `python`: statements. The whole page has one program.
- `yaml`, `json`, `csv` or `python` with `title="name"`: a file of that name, for all later blocks.
- `console`: lines that begin with `$ `, each with its output.
- `text`, right after a block of commands or Python: the output of that block.

Invariants
- Outputs are compared without what differs between runs: ids, times, ages, widths of columns. A line `...`
  matches any lines, and `...` inside a line matches anything.
"""

import re
from dataclasses import dataclass
from typing import Final

RUN: Final = frozenset({"sh", "python", "yaml", "console", "json", "csv", "toml"})
"""The languages of blocks that are to be run; `text`, `mermaid`, `promql`, ... only show something."""

_FENCE: Final = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_TITLE: Final = re.compile(r'title="([^"]+)"')
_BARE: Final = re.compile(
    r"^(?: {4,}|\t)(?:\$ )?(?:helm|holdfast|holdfast-operator|kubectl|make|pip|python3?)\s.*$", re.MULTILINE
)
_VARIES: Final = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?"), "TIME"),
    (re.compile(r"\b1[0-9]{12}\b"), "TIME"),
    (re.compile(r"\b(?:\d+[dhms]){1,2}\b"), "AGE"),
    (re.compile(r"\b\d+(?:\.\d+)? (?:KiB|MiB|kB|MB|bytes|B|s|ms|seconds?)\b"), "SIZE"),
    (re.compile(r"(?:/[\w.+-]+)+/(?=[\w.+-])"), "/"),
    # Who wrote: the program, its user, its process and its host.
    (re.compile(r"\b(holdfast(?:\.table| collection)) +[\w.@-]+ +\d+ +[\w.-]+"), r"\1 USER PID HOST"),
    (re.compile(r"[-=+]{4,}"), "----"),
    (re.compile(r"[ \t]+"), " "),
)


@dataclass(frozen=True)
class Block:
    """One block of code of a page, with what the page shows as its output."""

    page: str
    line: int
    language: str
    title: str | None
    text: str
    shows: str | None = None

    @property
    def first(self) -> str:
        """Its first line that says something: how it is named where it isn't run."""
        return next((line.strip() for line in self.text.splitlines() if line.strip()), "")


@dataclass(frozen=True)
class Command:
    """One command of a `console` block."""

    text: str
    shows: str


def blocks(page: str, markdown: str) -> list[Block]:
    """The blocks of a page in order, each with the `text` right after it."""
    found: list[Block] = []
    end = 0
    for each in _FENCE.finditer(markdown):
        title = _TITLE.search(each["info"])
        indent = len(each["indent"])
        text = "".join(line[indent:] if line.strip() else line for line in each["text"].splitlines(True))
        before = found[-1] if found else None
        follows = not markdown[end : each.start()].strip()
        end = each.end()
        line = markdown.count("\n", 0, each.start()) + 1
        if each["language"] == "text" and before is not None and follows and before.language in RUN:
            found[-1] = Block(before.page, before.line, before.language, before.title, before.text, text)
        else:
            found.append(Block(page, line, each["language"], title and title[1], text))
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a `console` block; those that are continued by a backslash are one."""
    found: list[Command] = []
    lines = iter(block.text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            text = line.removeprefix("$ ")
            while text.endswith("\\"):
                text += "\n" + next(lines)
            found.append(Command(text, ""))
        elif found:
            found[-1] = Command(found[-1].text, f"{found[-1].shows}{line}\n")
    return found


def bare_commands(markdown: str) -> list[str]:
    """Commands that stand on a page without a fence, which nothing runs."""
    return [line.strip() for line in _BARE.findall(_FENCE.sub("", markdown))]


def normal(text: str) -> list[str]:
    """The lines of an output without what differs from run to run."""
    for pattern, name in _VARIES:
        text = pattern.sub(name, text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def differs(shown: str, printed: str) -> str | None:
    """What is wrong with what a page shows of an output; None where it is right."""
    lines = [r"(?:.*\n)*?" if line == "..." else _line(line) for line in normal(shown)]
    printed_lines = normal(printed)
    if re.fullmatch("".join(lines), "".join(f"{line}\n" for line in printed_lines)):
        return None
    return "the page shows\n" + "\n".join(normal(shown)) + "\nbut it prints\n" + "\n".join(printed_lines)


def _line(text: str) -> str:
    return ".*".join(re.escape(part) for part in text.split("...")) + r"\n"
