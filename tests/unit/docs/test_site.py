"""The site builds strictly, its navigation has every page, and it uses no foreign server."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
import yaml

from holdfast import catalog, collections, persist, spark, tables
from holdfast_operator.api.generate import RESOURCES
from holdfast_operator.api.names import ConditionType, Reason

ROOT = Path(__file__).resolve().parents[3]
HOST = "https://site.example"


class Links(HTMLParser):
    """What a page leads to, what it loads, and what in it can be led to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if identity := found.get("id"):
            self.anchors.add(identity)
        if tag == "a" and (target := found.get("href")):
            self.leads.append(target)
        elif tag in {"script", "img", "link", "iframe"} and (target := found.get("src") or found.get("href")):
            self.loads.append(target)


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Links]:
    """By address: what each page leads to."""
    return {
        "/" + path.relative_to(site).as_posix().removesuffix("index.html"): Links(path.read_text())
        for path in site.rglob("*.html")
        if path.name != "404.html"
    }


def test_every_link_leads_to_something_of_the_site(site: Path, pages: dict[str, Links]) -> None:
    broken = []
    for address, page in pages.items():
        for target in page.leads:
            url = urlsplit(urljoin(HOST + address, target))
            if f"{url.scheme}://{url.netloc}" != HOST:
                continue
            path = site / unquote(url.path).lstrip("/")
            if not (path / "index.html" if path.is_dir() else path).is_file():
                broken.append(f"{address}: {target}")
            elif url.fragment and url.path in pages and unquote(url.fragment) not in pages[url.path].anchors:
                broken.append(f"{address}: {target}, no such heading")
    assert broken == []
    assert len(pages) > 40


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[str, Links]) -> None:
    loads = {urlsplit(target).netloc for page in pages.values() for target in page.loads}
    assert loads == {""}
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"url\(['\"]?https?:", styles) == []
    # What would be fetched for numbers of stars is asked for only where a page has them.
    html = "".join(path.read_text() for path in site.rglob("*.html"))
    assert 'data-md-component="source"' not in html


def test_the_search_has_an_index_and_runs_on_files_of_the_site(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text())
    found = {entry["location"]: entry for entry in index["docs"]}
    assert found["reference/glossary/#fence-token"]["title"] == "fence token"
    assert "reference/python/tables/#holdfast.tables.Table.upsert" in found
    # A search for `Table.append` also looks for the two words.
    assert re.split(index["config"]["separator"], "Table.append") == ["Table", "append"]
    assert "\b" not in "".join(entry["text"] for entry in index["docs"])
    for page in ("index.html", "reference/glossary/index.html"):
        html = (site / page).read_text()
        config = json.loads(re.findall(r'<script id="__config"[^>]*>(.*?)</script>', html)[0])
        assert (site / page).parent.joinpath(config["search"]).is_file()


def test_the_site_has_no_python_files(site: Path) -> None:
    assert [
        path for path in site.rglob("*") if path.name == "__pycache__" or path.suffix in {".py", ".pyc"}
    ] == []


def test_the_page_of_tables_has_the_introduction_and_the_common_names_first(site: Path) -> None:
    html = (site / "reference/python/tables/index.html").read_text()
    found = re.findall(r'<h2 id="(holdfast[\w.]+)"', html)
    assert found[:3] == ["holdfast.tables.opening.table", "holdfast.tables.Table", "holdfast.tables.write"]
    assert html.index("need not track uppers") < html.index(f'id="{found[0]}"')
    assert "instance-attribute" not in html
    assert re.findall(r'id="[\w.]+\.(?:prepare|what)"', html) == []


def test_the_api_reference_has_every_public_name(site: Path) -> None:
    for page, package in (
        ("tables", tables),
        ("persist", persist),
        ("catalog", catalog),
        ("collections", collections),
        ("spark", spark),
    ):
        html = (site / f"reference/python/{page}/index.html").read_text()
        there = {identity.rpartition(".")[2] for identity in re.findall(r' id="(holdfast[\w.]+)"', html)}
        assert set(package.__all__) - there == set()


def test_a_page_with_diagrams_has_what_draws_them(site: Path) -> None:
    drawn = 0
    for path in site.rglob("*.html"):
        html = path.read_text()
        scripts = re.findall(r'<script src="([^"]*)"', html)
        own = [script for script in scripts if script.endswith("/vendor/mermaid.tiny.js")]
        if 'class="mermaid"' not in html:
            assert own == []
            continue
        drawn += 1
        # Before the theme, which fetches one from elsewhere where there is none.
        assert own == scripts[:1]
        assert (path.parent / own[0]).resolve().is_file()
    assert drawn == sum("```mermaid" in page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    assert drawn > 1


def test_the_reference_has_every_field_command_and_reason(site: Path) -> None:
    resources = (site / "reference/resources/index.html").read_text()
    fields = 0
    for model in RESOURCES:
        crd = yaml.safe_load((ROOT / f"crds/holdfast.dev_{model.definition.kind.plural}.yaml").read_text())
        (version,) = crd["spec"]["versions"]
        for name in version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]:
            assert f"<code>spec.{name}</code>" in resources
            fields += 1
    assert fields > 30
    commands = (site / "reference/commands/index.html").read_text()
    for name in ("catalog upgrade-check", "collection tail", "migrate rollback", "persist verify"):
        assert f"holdfast {name}</h" in re.sub(r"<a class=\"headerlink.*?</a>", "", commands)
    assert "<code>--organization-id UUID</code>" in commands
    operator = (site / "reference/operator/index.html").read_text()
    for each in (*ConditionType, *Reason, "holdfast_reconciles_total", "--lease-duration S"):
        assert f"<code>{each}</code>" in operator
    assert "<code>leaderElection.enabled</code>" in (site / "reference/chart-values/index.html").read_text()


def test_a_strict_build_finds_a_broken_link_and_a_page_outside_of_the_navigation(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    config |= {"nav": ["index.md"], "hooks": [], "exclude_docs": ""}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config))

    (docs / "index.md").write_text("# There\n[gone](gone.md)\n")
    (docs / "other.md").write_text("# Other\n")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode != 0
    assert "'gone.md', but the target is not found" in done.stderr
    assert "other.md" in done.stderr
