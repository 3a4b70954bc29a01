"""The pages that say so are run: their Python, in order, as one program."""

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[3] / "docs" / "how-to"


@pytest.mark.parametrize(
    "page", ["store-python-values.md", "evolve-a-schema.md", "append-more-than-memory.md"]
)
def test_a_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    program = "\n".join(blocks)
    assert program.count("file:///tmp/shop") == 1
    assert "assert " in program
    program = program.replace("file:///tmp/shop", tmp_path.as_uri())
    exec(compile(program, page, "exec"), {"__name__": "example"})
