"""A real object store for tests: one MinIO server on loopback.

Invariants
- It listens on one address only (127.0.0.1 by default), with random credentials. All its files are in one
  folder.
- The endpoint, the credentials and the stored objects survive `kill` and `serve`.
- `start` and `serve` return when the server responds. If they raise, they leave no process.
"""

import contextlib
import os
import secrets
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from testbed import build
from testbed.errors import MinioError
from testbed.postgres import free_port
from testbed.process import Child

_LOOPBACK: Final = "127.0.0.1"
_BOOT_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
_ATTEMPTS: Final = 3
"""Boots to try when somebody takes the port between our choosing it and the server's binding it."""
_TAKEN: Final = "port is already in use"


class Minio:
    """A server to talk to; as a context manager it is stopped at the end."""

    def __init__(self, folder: Path, *, temporary: bool = False, address: str = _LOOPBACK) -> None:
        """Use `start`."""
        self.address: Final = address
        self.port: Final = free_port(address)
        self.access_key: Final = f"testbed{secrets.token_hex(4)}"
        self.secret_key: Final = secrets.token_hex(16)
        self._folder: Final = folder
        self._temporary: Final = temporary
        self._child: Child | None = None

    @classmethod
    def start(cls, folder: Path | None = None, *, address: str = _LOOPBACK) -> Self:
        """Boot a server at an address of this machine, building it first where it is missing.

        Its files go to `folder`, which stays, or to a temporary one, which goes with it. It dies with the
        calling thread. Raises `Unavailable` where the binary can't be had, `MinioError` where it doesn't
        come up.
        """
        build.ensure((build.MINIO,))
        for attempt in range(1, _ATTEMPTS + 1):
            place = Path(tempfile.mkdtemp(prefix="holdfast-minio-")) if folder is None else folder
            server = cls(place, temporary=folder is None, address=address)
            try:
                server.serve()
            except BaseException as error:
                server.stop()
                taken = isinstance(error, MinioError) and _TAKEN in str(error).lower()
                if not taken or attempt == _ATTEMPTS:
                    raise
            else:
                return server
        raise AssertionError("unreachable")

    @property
    def endpoint(self) -> str:
        """The URL of the server."""
        return f"http://{self.address}:{self.port}"

    @property
    def credentials(self) -> dict[str, str]:
        """The environment of a client of this server; nothing else on the machine gives it credentials."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def serve(self) -> None:
        """Start the server, or start it again, and wait until it responds."""
        data = self._folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        child = Child(
            "minio",
            [
                *(build.MINIO.path, "server", "--anonymous", "--certs-dir", self._folder / "certs"),
                *("--address", f"{self.address}:{self.port}", data),
            ],
            log=self._folder / "minio.log",
            # Nothing of the caller's settings (proxies, MINIO_* variables) may reach the server.
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(self._folder),
                "MINIO_ROOT_USER": self.access_key,
                "MINIO_ROOT_PASSWORD": self.secret_key,
                "MINIO_BROWSER": "off",
                "MINIO_UPDATE": "off",
            },
            cwd=self._folder,
        )
        self._child = child
        try:
            self._wait_until_ready(child)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End the server at once, as a crash would; `serve` starts it again."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Pause the server: it accepts connections, and responds when the block ends."""
        assert self._child is not None
        os.killpg(self._child.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._child.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End the server and remove its temporary folder."""
        if self._child is not None:
            self._child.stop()
            self._child = None
        if self._temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    def make_bucket(self) -> str:
        """Make an empty bucket; its name."""
        name = f"test-{uuid.uuid4().hex}"
        self.client.create_bucket(Bucket=name)
        return name

    @cached_property
    def client(self) -> Any:
        """A boto3 client of this server, to look at what is stored from outside."""
        import boto3
        from botocore.config import Config

        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(
                proxies={},
                connect_timeout=5,
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path"},
            ),
        )

    def _wait_until_ready(self, child: Child) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        deadline = time.monotonic() + _BOOT_SECONDS
        client = self.client
        while True:
            try:
                client.list_buckets()
            except (BotoCoreError, ClientError) as error:
                code = child.poll()
                if code is not None:
                    raise MinioError(f"MinIO ended with exit code {code}:\n{child.tail()}") from error
                if time.monotonic() > deadline:
                    raise MinioError(
                        f"MinIO did not answer within {_BOOT_SECONDS:.0f} s:\n{child.tail()}"
                    ) from error
                time.sleep(_POLL_SECONDS)
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
