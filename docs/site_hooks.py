"""MkDocs hooks: they add the generated pages and the source files that pages link to.

Pages link to source files by relative paths, so that the links work in the repository. In the site, a linked
Markdown file becomes a page, and any other file becomes text, both below `source/`.

Invariants
- Every link that works in the repository works in the site. A broken link fails a strict build.
- Nothing is downloaded, neither when the site is built nor when it is read.
"""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from posixpath import relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url
from pymdownx.superfences import fence_code_format

sys.path.insert(0, str(Path(__file__).parent))
import reference_pages

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SOURCE = "source"
BOOSTS = {"reference/python/": 0.2, f"{SOURCE}/": 0.3, "reference/glossary.md": 3}
"""The weights of pages in the search. The API reference repeats words and would otherwise hide the rest."""
DIAGRAMS = "vendor/mermaid.tiny.js"
"""The script that draws diagrams: @mermaid-js/tiny 11.17.2 as published, with its license next to it."""
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_ABSOLUTE = re.compile(r"[a-z]+:")
_THEME = re.compile(r'(?=<script src="[^"]*assets/javascripts/bundle)')


def slug(heading: str, separator: str) -> str:
    """Return the anchor of a heading, as the repository's viewer makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def uri(path: Path) -> str | None:
    """Return the path in the site of a file or folder of the repository; None for a folder without a page."""
    if path.is_dir():
        return uri(path / "README.md") if (path / "README.md").is_file() else None
    if _is_shown(path):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    return f"{SOURCE}/{name}" if path.suffix == ".md" else f"{SOURCE}/{name}.txt"


def relinked(markdown: str, page: Path) -> str:
    """Return the text of a page with its links changed for the site."""
    here = uri(page)
    assert here is not None

    def link(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        name, hash_, anchor = target.partition("#")
        if _ABSOLUTE.match(target) or not name:
            return found[0]
        path = (page.parent / name).resolve()
        if not path.exists() or not path.is_relative_to(ROOT):
            return found[0]
        there = uri(path)
        if there is None:
            return text
        return f"[{text}]({relpath(there, str(PurePosixPath(here).parent))}{hash_}{anchor})"

    return _outside_of_code(markdown, lambda text: _LINK.sub(link, text))


def linked(markdown: str, page: Path) -> Iterator[Path]:
    """Yield the files of the repository that a page links to, except pages and pictures in docs/."""
    for _, target in _LINK.findall(_FENCE.sub("", markdown)):
        path = (page.parent / target.partition("#")[0]).resolve()
        if path.is_dir():
            path /= "README.md"
        if path.is_file() and path.is_relative_to(ROOT) and not _is_shown(path):
            yield path


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Use the anchors and the diagram fences of the repository's viewer."""
    config.mdx_configs["toc"]["slugify"] = slug
    diagram = {"name": "mermaid", "class": "mermaid", "format": fence_code_format}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [diagram]}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the source files that pages link to, directly or through other files."""
    for name, make in reference_pages.PAGES.items():
        files.append(File.generated(config, name, content=make()))
    waiting = [Path(str(file.abs_src_path)) for file in files.documentation_pages() if file.abs_src_path]
    for page in waiting:
        for path in linked(page.read_text(), page):
            name = uri(path)
            assert name is not None
            if files.get_file_from_path(name) is not None:
                continue
            content = relinked(path.read_text(), path) if path.suffix == ".md" else path.read_bytes()
            files.append(File.generated(config, name, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
            if path.suffix == ".md":
                waiting.append(path)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Point links out of docs/ to the copies in the site, and set the page's weight in the search."""
    for name, boost in BOOSTS.items():
        if page.file.src_uri.startswith(name):
            page.meta["search"] = {"boost": boost}
    source = page.file.abs_src_path
    return markdown if source is None else relinked(markdown, Path(source))


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Load the diagram script in a page with diagrams, so that the theme doesn't download another one."""
    if 'class="mermaid"' not in output:
        return output
    script = f'<script src="{get_relative_url(DIAGRAMS, page.url)}"></script>'
    return _THEME.sub(lambda _: script, output, count=1)


def _is_shown(path: Path) -> bool:
    return path.suffix in {".md", ".svg"} and path.is_relative_to(DOCS)


def _outside_of_code(markdown: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for found in _FENCE.finditer(markdown):
        parts += [change(markdown[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*parts, change(markdown[end:])])
