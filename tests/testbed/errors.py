"""Errors of the test bed itself. Each is one line with a hint."""


class Unavailable(Exception):
    """A tier can't be had on this machine; the message names what is missing and how to get it."""


class ControlPlaneError(Exception):
    """A control plane did not come up; the message names the process, its last words and its log."""


class MinioError(Exception):
    """A MinIO server did not come up; the message holds its last words."""


class KafkaBrokerError(Exception):
    """A Kafka broker did not come up; the message has its last words."""


class KubectlError(Exception):
    """A kubectl command failed; the message is its standard error, `code` its exit code.

    Of what was asked for without kubectl: what the API server says against it, and its HTTP status.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class PostgresError(Exception):
    """A Postgres server did not come up; the message has its last words."""


class HelmError(Exception):
    """A Helm command failed; the message is its standard error."""
