"""The cookbook: every recipe shows Python and the command line, and all of its Python runs in this process.

`test_pages.py` runs the whole page, in the long part.
"""

import re
from pathlib import Path

import holdfast
from holdfast.collections import CollectionSpec, StorageController
from holdfast.persist import Schema
from testbed import docpages
from testbed.pageruns import PageRun
from testbed.pages import blocks

PAGE = "docs/how-to/cookbook.md"
CUSTOMERS = [{"name": "Ada", "city": "Paris"}, {"name": "Ben", "city": "Oslo"}]


def test_every_recipe_shows_python_and_the_command_line() -> None:
    recipes = (docpages.ROOT / PAGE).read_text().split("\n## ")[1:]
    assert len(recipes) >= 20
    for recipe in recipes:
        languages = {block.language for block in blocks(PAGE, f"## {recipe}")}
        assert languages >= {"python", "sh"}, recipe.partition("\n")[0]


def test_the_list_at_the_top_has_every_recipe() -> None:
    text = (docpages.ROOT / PAGE).read_text()
    head, _, body = text.partition("\n## ")
    headings = re.findall(r"^## (.*)$", f"## {body}", re.MULTILINE)
    listed = re.findall(r"\]\(#([^)]+)\)", head)
    anchors = [re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings]
    assert sorted(listed) == sorted(anchors)


def test_the_python_of_all_recipes_runs(tmp_path: Path) -> None:
    with PageRun(tmp_path) as run:
        # What the commands make.
        with holdfast.table(
            tmp_path / "tmp/shop", "customers", columns={"name": "string", "city": "string"}, key="name"
        ) as customers:
            customers.append(CUSTOMERS)
            schema = Schema.of({"id": "int64"}, {"page": "string"})
            StorageController(customers.client).create_collection(
                CollectionSpec("visits", "visits", schema, source_fed=True)
            )
        (tmp_path / "tmp/inbox").mkdir()
        (tmp_path / "tmp/inbox/monday.jsonl").write_text('{"id": 1, "page": "/"}\n')
        for block in docpages.to_run(PAGE):
            # Exports to lakes are tested by `test_table_lakes.py`, and importing their libraries is slow.
            is_slow = 'format="iceberg"' in block.text
            if block.title is not None or (block.language == "python" and not is_slow):
                run.run(block)
