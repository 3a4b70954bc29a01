"""Which pages of the documentation there are, and how what they tell to do is tried.

Every block of `sh`, `console`, `python` or `yaml` is run, page by page and in order (`pageruns`), in a
folder of its own. So a new page needs nothing here. Blocks with `kubectl`, `helm` or `holdfast-operator`
in them take a cluster and are left out. What else can't be run is in `NOT_RUN`, with the reason; what a
page takes for granted is in `BEFORE`.

Invariants
- A reason names a block that is there, and a block without one is run.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from testbed.pageruns import PageRun
from testbed.pages import RUN, Block, blocks

ROOT: Final = Path(__file__).resolve().parents[2]

_LONG: Final = "the tests and the demo themselves, minutes each; CI runs them"

_HYDRATE: Final = "a job of Spark, with the id of a record: tests/spark/test_spark_hydrate_job.py runs it"

NOT_RUN: Final[Mapping[tuple[str, str], str]] = {
    (
        "README.md",
        "make demo",
    ): _LONG,
    (
        "docs/explanation/simulation.md",
        "make sim",
    ): _LONG,
    (
        "docs/how-to/run-the-tests.md",
        "make test",
    ): _LONG,
    (
        "docs/how-to/run-the-tests.md",
        "make soak",
    ): _LONG,
    (
        "docs/how-to/rebuild-a-collection.md",
        'job = controller.start_job("c1", "hydrate", "r2", spec={})',
    ): _HYDRATE,
    (
        "docs/how-to/rebuild-a-collection.md",
        "python -m holdfast.spark.jobs.hydrate",
    ): _HYDRATE,
}
"""By page and how the first line of a block begins: why it isn't run."""

RUN_ELSEWHERE: Final[Mapping[str, str]] = {
    "docs/how-to/read-with-spark.md": "tests/spark/test_spark_page.py",
}
"""By page: the test that runs all of it, since it takes a tier."""

_STASH: Final = "--stash sqlite:///data/stash.sqlite"
_BOTH: Final = (
    "--stash sqlite:///data/shop.db --persist file:///data/shop "
    "--organization-id 9c1f0c52-7d3e-4b0a-9a55-0e6b4a1d7c44"
)
_DECIDE: Final = "docs/how-to/decide-which-store-counts.md"
BEFORE: Final[Mapping[tuple[str, str], str]] = {
    (
        "docs/how-to/inspect-and-repair-a-catalog.md",
        "$ holdfast catalog dump --stash sqlite:///data/stash.sqlite --target catalog.json",
    ): f"""
        holdfast catalog init {_STASH}
        holdfast catalog edit {_STASH} --yes system_configurations \\
          '{{"name": "max_tables"}}' '{{"value": "100"}}'
    """,
    (
        _DECIDE,
        '$ catalog="--persist file:///data/shop --organization-id 9c1f0c52-7d3e-4b0a-9a55-0e6b4a1d7c44"',
    ): f"""
        holdfast catalog init --stash sqlite:///data/shop.db
        cp data/shop.db data/older.db
        holdfast migrate run {_BOTH} --id to-persist --target persist
        mv data/older.db data/shop.db
    """,
    (_DECIDE, "$ holdfast migrate detach --stash-lost $catalog --accept-loss --yes"): "rm data/shop.db",
    ("docs/how-to/use-tables.md", "export HOLDFAST_URL=file:///tmp/shop"): """
        python - <<END
import pyarrow as pa, pyarrow.parquet as pq
pq.write_table(pa.table({"id": [7, 8], "item": ["fig", "date"], "count": [1, 2]}), "june.parquet")
END
        printf 'id,item,count\\n7,fig,4\\n' > new.csv
    """,
    ("docs/how-to/open-a-catalog-from-a-pod.md", 'holdfast catalog dump --persist "$HOLDFAST_URL"'): """
        export HOLDFAST_URL=file:///data/demo HOLDFAST_ORGANIZATION_ID=9c1f0c52-7d3e-4b0a-9a55-0e6b4a1d7c44
        holdfast catalog init --persist "$HOLDFAST_URL" --organization-id "$HOLDFAST_ORGANIZATION_ID"
        python report.py
    """,
    (
        "docs/how-to/upgrade-a-catalog.md",
        '$ catalog="--persist file:///data/demo --organization-id 3d0c7d4e-5b1f-4c8e-9a63-0f2d6a1b7c95"',
    ): """
        python - <<END
import uuid
from holdfast.durable import OpenMode, persist_catalog
from holdfast.persist import PersistClient
from testbed.oldcatalogs import rows_of
with PersistClient.open("file:///data/demo") as client:
    catalog = persist_catalog(client, uuid.UUID("3d0c7d4e-5b1f-4c8e-9a63-0f2d6a1b7c95"))
    catalog.load(rows_of(18, items=3), holder="older", purpose="example")
    catalog.open(OpenMode.WRITABLE, holder="newer", purpose="example").close()
END
    """,
    (
        "docs/how-to/when-a-store-is-lost.md",
        'catalog="--persist file:///data/shop --organization-id 9c1f0c52-7d3e-4b0a-9a55-0e6b4a1d7c44"',
    ): f"""
        holdfast catalog init --stash sqlite:///data/shop.db
        holdfast migrate link {_BOTH} --truth stash --yes
    """,
    (
        "docs/how-to/when-a-store-is-lost.md",
        "holdfast migrate detach --stash-lost $catalog --yes",
    ): f"""
        holdfast migrate run {_BOTH} --id to-persist --target persist
        rm data/shop.db*
    """,
}
"""By page and how the first line of a block begins: commands that make what its reader has by then."""

_CLUSTER: Final = re.compile(
    r"^(?:\$ )?(?:.*\| *)?(?:kubectl|helm|holdfast-operator|flux|argocd) ", re.MULTILINE
)


def pages() -> list[str]:
    """All pages, by their paths in the repository."""
    there = [
        *sorted((ROOT / "docs").rglob("*.md")),
        ROOT / "README.md",
        *sorted((ROOT / "charts").rglob("*.md")),
    ]
    return [path.relative_to(ROOT).as_posix() for path in there]


def found(table: Mapping[tuple[str, str], str], block: Block) -> str | None:
    """What a table of this module says of a block."""
    for (page, begins), said in table.items():
        if page == block.page and block.first.startswith(begins):
            return said
    return None


def to_run(page: str) -> list[Block]:
    """The blocks of a page that are run, in order."""
    if page in RUN_ELSEWHERE:
        return []
    return [
        block
        for block in blocks(page, (ROOT / page).read_text())
        if block.language in RUN and found(NOT_RUN, block) is None and not on_cluster(block)
    ]


def on_cluster(block: Block) -> bool:
    """Whether a block takes a cluster."""
    return block.language in {"sh", "console"} and _CLUSTER.search(block.text) is not None


def run(page: str, to: PageRun) -> None:
    """Run a page. Raises `PageFailed`."""
    for block in to_run(page):
        if before := found(BEFORE, block):
            to.before(page, before)
        to.run(block)
