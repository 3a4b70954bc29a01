"""Every relative link of the documentation leads somewhere, and every symbol that it names is defined there.

A link text of the form `path.py::symbol` promises that `symbol` (or `Class.method`) is defined in the file.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
SKIPPED = {".venv", ".tools", "node_modules", ".pytest_cache"}


def pages() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.md")) if not SKIPPED & set(path.relative_to(ROOT).parts)]


@cache
def symbols(path: Path) -> set[str]:
    found: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            if isinstance(node, ast.Assign):
                found.update(prefix + target.id for target in node.targets if isinstance(target, ast.Name))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(prefix + node.target.id)

    visit(ast.parse(path.read_text()).body, "")
    return found


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for text, target in LINK.findall(page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            broken.append(f"{target}: no such file")
            continue
        if anchor and path.suffix == ".md" and anchor not in anchors(path):
            broken.append(f"{target}: no such heading")
        symbol = text.strip("`").partition("::")[2]
        if symbol and symbol not in symbols(path):
            broken.append(f"{target}: {symbol} is not defined there")
    return broken


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("def there(): ...\n\nclass A:\n    def method(self): ...\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# A Title\n[ok](code.py) [`code.py::there`](code.py) [`code.py::A.method`](code.py) [ok](#a-title)\n"
        "[bad](gone.py) [`code.py::gone`](code.py) [bad](#nowhere)\n"
    )
    assert len(broken_links(page)) == 3


def test_the_code_map_names_symbols() -> None:
    text = (ROOT / "docs" / "reference" / "code-map.md").read_text()
    assert len(re.findall(r"\[`[^`]+::[^`]+`\]\(", text)) >= 30


def test_the_code_map_names_every_module() -> None:
    page = ROOT / "docs" / "reference" / "code-map.md"
    linked = {
        (page.parent / target.partition("#")[0]).resolve() for _, target in LINK.findall(page.read_text())
    }
    modules = [
        path
        for folder in (ROOT / "catalog" / "holdfast", ROOT / "operator" / "holdfast_operator")
        for path in sorted(folder.rglob("*.py"))
        if path.name != "__init__.py" and path.parent.name != "_pb"
    ]
    missing = [f"add a row with ../../{each.relative_to(ROOT)}" for each in modules if each not in linked]
    assert missing == []
