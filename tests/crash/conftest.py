"""A fixture for the pairs of stores whose writers the tests kill."""

from collections.abc import Callable
from pathlib import Path

import pytest

from crash.campaign import Place
from testbed.minio import Minio


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The place that the test's parameter names."""
    blob, consensus = request.param.split("+")
    return Place(blob=_BLOBS[blob](request, tmp_path), consensus=_LOGS[consensus](request, tmp_path))


def _s3(prefix: str) -> "_Maker":
    def make(request: pytest.FixtureRequest, _: Path) -> str:
        minio: Minio = request.getfixturevalue("minio")
        return f"s3://{request.getfixturevalue('bucket')}/{prefix}?endpoint={minio.endpoint}"

    return make


_Maker = Callable[[pytest.FixtureRequest, Path], str]
_BLOBS: dict[str, _Maker] = {"file": lambda _, folder: f"file://{folder}/blob", "s3": _s3("blob")}
_LOGS: dict[str, _Maker] = {
    "sqlite": lambda _, folder: f"sqlite://{folder}/consensus.sqlite",
    "s3": _s3("log"),
    "postgres": lambda request, _: str(request.getfixturevalue("postgres_url")),
}
