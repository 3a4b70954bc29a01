"""The pages that say so are run: their Python, in order, as one program."""

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[3] / "docs" / "how-to"


@pytest.mark.parametrize(
    ("page", "place"),
    [
        ("store-python-values.md", "file:///tmp/shop"),
        ("evolve-a-schema.md", "file:///tmp/shop"),
        ("rebuild-a-collection.md", "file:///tmp/shop"),
        ("append-more-than-memory.md", "file:///tmp/shop"),
        ("keep-a-catalog-in-a-database.md", "sqlite:///tmp/shop"),
        ("observe-a-catalog.md", "file:///tmp/shop"),
        ("follow-a-catalog.md", "file:///tmp/shop"),
        ("use-tables.md", "file:///tmp/shop"),
        ("follow-a-moving-catalog.md", '"/tmp/shop"'),
    ],
)
def test_a_page_does_what_it_says(page: str, place: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    program = "\n".join(blocks)
    assert program.count(place) == 1
    assert "assert " in program
    program = program.replace(place, place.replace("/tmp/shop", f"{tmp_path}/shop"))
    exec(compile(program, page, "exec"), {"__name__": "example"})
