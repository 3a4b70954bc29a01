"""Lists the documentation pages, and runs what they contain.

`pageruns` runs every block of `sh`, `console`, `python` or `yaml`, page by page and in order, in a folder of
its own. A page with `kubectl`, `helm` or `holdfast-operator` in a block runs on a cluster. A new page needs
no entry here. `docneeds` lists the blocks that cannot run, and what a page needs.

Invariants
- A block without a reason in `docneeds` runs, in exactly one place.
"""

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Final

from testbed.docneeds import BEFORE, LAST, NOT_RUN, RUN_ELSEWHERE
from testbed.pageruns import PageRun
from testbed.pages import RUN, Block, blocks

ROOT: Final = Path(__file__).resolve().parents[2]

_CLUSTER: Final = re.compile(
    r"^(?:\$ )?(?:.*\| *|.*\$\()?(?:kubectl|helm|holdfast-operator|flux|argocd) ", re.MULTILINE
)


class Where(Enum):
    """What a page is run on."""

    MACHINE = "no tier"
    CLUSTER = "an API server with an operator"
    ELSEWHERE = "the test that RUN_ELSEWHERE names"


def pages() -> list[str]:
    """All pages, by their paths in the repository."""
    there = [
        *sorted((ROOT / "docs").rglob("*.md")),
        ROOT / "README.md",
        *(
            path
            for folder in ("catalog", "charts", "operator")
            for path in sorted((ROOT / folder).rglob("*.md"))
        ),
    ]
    return [path.relative_to(ROOT).as_posix() for path in there]


def found(table: Mapping[tuple[str, str], str], block: Block) -> str | None:
    """What a table of `docneeds` says of a block."""
    for (page, begins), said in table.items():
        if page == block.page and block.first.startswith(begins):
            return said
    return None


def to_run(page: str) -> list[Block]:
    """The blocks of a page that are run, in order."""
    return [
        block
        for block in blocks(page, (ROOT / page).read_text())
        if block.language in RUN and found(NOT_RUN, block) is None
    ]


def where(page: str) -> Where | None:
    """What a page is run on; None where it has nothing to run."""
    if page in RUN_ELSEWHERE:
        return Where.ELSEWHERE
    there = to_run(page)
    if any(block.language in {"sh", "console"} and _CLUSTER.search(block.text) for block in there):
        return Where.CLUSTER
    return Where.MACHINE if there else None


def on(place: Where) -> list[str]:
    """The pages that are run there, those that leave nothing to others last."""
    return sorted((page for page in pages() if where(page) is place), key=lambda page: page in LAST)


def run(page: str, to: PageRun) -> None:
    """Run a page. Raises `PageFailed`."""
    for block in to_run(page):
        if before := found(BEFORE, block):
            to.before(page, before)
        to.run(block)
