"""Operators are killed during migrations. One source of truth stays, with everything that was written.

The API server, Postgres, the object store and the operator's process are real. `make soak` kills more
operators.
"""

from pathlib import Path

import pytest

from crash.moves import Moves, servers_of
from sim.report import tell
from testbed.kube import ControlPlane
from testbed.minio import Minio
from testbed.postgres import PostgresServer

pytestmark = [pytest.mark.kube, pytest.mark.postgres, pytest.mark.s3]

KILLS = 10
SEED = 1


@pytest.mark.timeout(1800)  # each life is a process that starts, and some machines have other things to do
@pytest.mark.long
def test_killed_operators_leave_one_source_of_truth(
    control_plane: ControlPlane,
    postgres: PostgresServer,
    minio: Minio,
    bucket: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    with (
        servers_of(control_plane, postgres, minio, bucket) as servers,
        Moves(servers, tmp_path, SEED) as moves,
    ):
        try:
            moves.run(KILLS)
        finally:
            tell(request.config, moves.report())
    assert sum(moves.deaths.values()) == KILLS
    assert any("in step" in place or "after step" in place for place in moves.deaths)
    assert moves.lies >= KILLS // 3
    assert moves.writer.reopened >= 1
