"""Runs every block of the pages about clusters, in the order of the page (see `testbed.clusterpages`)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import clusterpages, docpages
from testbed.clusterpages import PagesCluster
from testbed.minio import Minio
from testbed.postgres import PostgresServer

pytestmark = [pytest.mark.helm, pytest.mark.kube, pytest.mark.postgres, pytest.mark.s3]


@pytest.fixture(scope="module")
def cluster(
    minio: Minio, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PagesCluster]:
    with clusterpages.serving(minio, postgres, tmp_path_factory.mktemp("pages")) as there:
        yield there


SHORT = "docs/tutorial/on-kubernetes.md"
"""The page of `make test`: it uses most of what the others use too."""
PAGES = [
    pytest.param(page, marks=() if page == SHORT else pytest.mark.long)
    for page in docpages.on(docpages.Where.CLUSTER)
]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.long
def test_a_page_does_what_it_says_on_a_cluster(page: str, cluster: PagesCluster, tmp_path: Path) -> None:
    with cluster.page(page, tmp_path) as run:
        docpages.run(page, run)
