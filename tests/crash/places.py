"""The pairs of stores for the long set, on separate servers that may fail over."""

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from crash.campaign import Place
from testbed.minio import Minio
from testbed.postgres import USER, PostgresServer

PAIRS: Final = tuple(
    f"{blob}+{consensus}" for blob in ("file", "s3") for consensus in ("sqlite", "postgres", "s3")
)


class Failover:
    """A primary and a synchronous standby: what was acknowledged outlives the primary's death."""

    def __init__(self) -> None:
        self._primary = PostgresServer.start()
        try:
            self._standby = self._primary.standby()
            self._primary.commit_with("*")
        except BaseException:
            self._primary.close()
            raise

    @property
    def url(self) -> str:
        """Both hosts: clients find the primary, whichever it is."""
        servers = sorted((self._primary, self._standby), key=lambda server: server.port)
        hosts = ",".join(f"{server.address}:{server.port}" for server in servers)
        secret = self._primary.password
        return f"postgresql://{USER}:{secret}@{hosts}/postgres?target_session_attrs=read-write"

    def fail_over(self) -> None:
        """Kill the primary, promote the standby, and start a new standby at the address of the dead one."""
        dead = self._primary
        dead.kill()
        self._standby.promote()
        dead.close()
        self._primary = self._standby
        self._standby = self._primary.standby(dead.port)
        self._primary.commit_with("*")

    def close(self) -> None:
        """Stop both."""
        self._standby.close()
        self._primary.close()


@contextmanager
def opened(pair: str, folder: Path, *, disturbed: bool = False) -> Iterator[Place]:
    """A fresh place of the pair, on servers of its own, with a standby if it is to be `disturbed`.

    Where it has two servers they are disturbed by turns; without any there is nothing to disturb.
    """
    blob, consensus = pair.split("+")
    disturbances: list[Callable[[], None]] = []
    urls = {"file": f"file://{folder}/blob", "sqlite": f"sqlite://{folder}/consensus.sqlite"}
    with ExitStack() as stack:
        # A server ends with the thread that started it: this one ends after all servers.
        pool = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="disturber"))
        if "s3" in (blob, consensus):
            minio = stack.enter_context(Minio.start())
            os.environ.update(minio.credentials)
            urls["s3"] = f"s3://{minio.make_bucket()}/%s?endpoint={minio.endpoint}"

            def restart() -> None:
                minio.kill()
                minio.serve()

            disturbances.append(restart)
        if consensus == "postgres" and disturbed:
            servers = Failover()
            stack.callback(servers.close)
            urls["postgres"] = servers.url
            disturbances.append(servers.fail_over)
        elif consensus == "postgres":
            urls["postgres"] = stack.enter_context(PostgresServer.start()).url()
        by_turns = itertools.cycle(disturbances)
        yield Place(
            blob=urls[blob].replace("%s", "blob"),
            consensus=urls[consensus].replace("%s", "log"),
            disturb=(lambda: pool.submit(lambda: next(by_turns)()).result()) if disturbances else None,
        )
