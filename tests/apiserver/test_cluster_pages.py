"""What the pages tell to do on a cluster is done: every block, in the order of the page (`clusterpages`)."""

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


@pytest.mark.parametrize("page", docpages.on(docpages.Where.CLUSTER))
def test_a_page_does_what_it_says_on_a_cluster(page: str, cluster: PagesCluster, tmp_path: Path) -> None:
    with cluster.page(page, tmp_path) as run:
        docpages.run(page, run)
