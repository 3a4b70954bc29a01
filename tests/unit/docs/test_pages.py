"""What the pages tell to do is done: every block of commands and code, in the order of the page.

Pages that take a cluster are run by `tests/apiserver/test_cluster_pages.py`.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from testbed import commandserver, docneeds, docpages
from testbed.children import plain_path
from testbed.pageruns import PageFailed, PageRun
from testbed.pages import RUN, bare_commands, blocks, commands, differs


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    tools = tmp_path_factory.mktemp("bin")
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, "PYTHONPATH": plain_path(str(docpages.ROOT / "tests"))}
    with commandserver.serving(tools, given):
        yield given


def _long_if_costly(page: str) -> object:
    return pytest.param(page, marks=pytest.mark.long) if page in docneeds.COSTLY else page


@pytest.mark.parametrize("page", map(_long_if_costly, docpages.on(docpages.Where.MACHINE)))
def test_a_page_does_what_it_says(page: str, environment: dict[str, str], tmp_path: Path) -> None:
    with PageRun(tmp_path, environment=environment) as run:
        docpages.run(page, run)


def test_a_page_that_is_run_elsewhere_is_named_there() -> None:
    for page, test in docneeds.RUN_ELSEWHERE.items():
        assert Path(page).name in (docpages.ROOT / test).read_text()


@pytest.mark.parametrize("table", [docneeds.NOT_RUN, docneeds.BEFORE])
def test_every_exception_is_of_a_block_that_is_there(table: Mapping[tuple[str, str], str]) -> None:
    there = [
        block
        for page in docpages.pages()
        for block in blocks(page, (docpages.ROOT / page).read_text())
        if block.language in RUN
    ]
    for key in table:
        assert any(docpages.found({key: "it"}, block) for block in there), f"{key} is gone: remove it"


@pytest.mark.parametrize("page", docpages.pages())
def test_every_command_is_in_a_block(page: str) -> None:
    assert bare_commands((docpages.ROOT / page).read_text()) == [], "write it in a block of sh, which is run"


PAGE = """
```sh
name=world
```

```sh
echo "hello $name at 2026-01-01T10:00:00Z"
```

```text
hello world at 2025-12-12T10:00:00Z
```

```yaml title="some.yaml"
a: 1
```

```python
with open("some.yaml") as file:
    print(file.read())
```

```text
a: 1
```

- in a list:

  ```console
  $ cat some.yaml
  a: 1
  $ holdfast catalog epoch --stash sqlite:///data/none.sqlite
  holdfast: the catalog in ... is not initialized
  ...
  ```
"""


def page(tmp_path: Path, environment: dict[str, str], markdown: str) -> None:
    with PageRun(tmp_path, environment=environment) as run:
        for block in blocks("page.md", markdown):
            run.run(block)


def test_a_page_that_is_right_is_run_to_its_end(tmp_path: Path, environment: dict[str, str]) -> None:
    assert [len(commands(block)) for block in blocks("page.md", PAGE)] == [0, 0, 0, 0, 2]
    page(tmp_path, environment, PAGE)


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("name=world", "false", "exit code 1"),
        ("name=world", "name=moon", "hello moon"),
        ("name=world", "export world", "unbound variable"),
        ("hello world at 2025-12-12T10:00:00Z", "hello world", "hello world at TIME"),
        ("print(file.read())", "print(1)", "page.md:18"),
        ("$ cat some.yaml", "$ cat none.yaml", "exit code 1"),
        ("is not initialized", "is well", "it prints"),
        (' title="some.yaml"', "", "needs a title"),
    ],
)
def test_a_page_that_is_wrong_is_found(
    right: str, wrong: str, told: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    assert right in PAGE
    with pytest.raises(PageFailed, match=told):
        page(tmp_path, environment, PAGE.replace(right, wrong))


def test_what_is_shown_is_compared_without_what_varies() -> None:
    assert differs("...\nb 1s\n", "a\nb 30s\n") is None
    assert differs("a  b\n", "a   b\n") is None
    assert differs("a ... c\n", "a bb c\n") is None
    assert differs("a\n", "a\nb\n") is not None
    assert differs("a b\n", "a c\n") is not None


def test_a_command_outside_of_a_block_is_found() -> None:
    assert bare_commands("so:\n\n    kubectl get pods\n\n```sh\n    kubectl get nodes\n```\n") == [
        "kubectl get pods"
    ]
