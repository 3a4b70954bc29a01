"""JobRecords: what a job was asked to do, which attempt may commit it, and how it ended.

A job is identified by (object, kind, slot). A slot is, for example, the scheduled time of a snapshot. An
attempt commits its effects together with the change of the record from Running(attempt) to Done. So if
several processes run one job, even old ones that were thought dead, exactly one takes effect.

A critical hold on the metadata shard keeps what an attempt reads. It has no lease and is named after the
attempt. It is taken in a commit that depends on the record being Running at that attempt, and only the commit
that ends the attempt releases it. So a kill at any moment leaves no hold behind once the job is over, and
several drivers of one attempt don't take the hold from each other.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from holdfast.errors import BadInput, HoldfastError

Json = Mapping[str, Any]

AS_OF: Final = "as_of"
"""In the spec of a job: the time at which it reads its collection. Each of its attempts holds that time."""
BATCH: Final = "batch"
"""In the result of a job that stands for a stream: the number of the last batch that was written."""
PLAN: Final = "plan"
"""In the result of a job that is not done: how its attempts divide the work."""

_MAX_NAME: Final = 255
_MAX_ERROR: Final = 1000
_NOT_A_UUID: Final = uuid.UUID(int=0)


class JobState(IntEnum):
    """The state of an attempt. The numbers are stored."""

    RUNNING = 1
    DONE = 2
    FAILED = 3


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job. `attempt` counts from 1. `started_ms`, `finished_ms` (0: not yet) and `by` are the latest
    attempt's.

    `by` names who runs the attempt, and is empty if that is the process that started it. `failures` is how
    many attempts of this `by` failed by themselves. Attempts that were stopped or abandoned don't count.
    """

    job_id: str
    object_id: str
    kind: str
    slot: str
    attempt: int
    state: JobState
    spec: Json = field(default_factory=dict)
    result: Json = field(default_factory=dict)
    error: str = ""
    started_ms: int = 0
    finished_ms: int = 0
    by: str = ""
    failures: int = 0

    @property
    def as_of(self) -> int | None:
        """The time at which the job reads its collection, from its spec."""
        found = self.spec.get(AS_OF)
        return found if isinstance(found, int) else None

    @property
    def plan(self) -> Json | None:
        """The plan that an attempt of the job has recorded. None if there is none, and after the job."""
        found = self.result.get(PLAN)
        return found if isinstance(found, dict) and self.state is not JobState.DONE else None

    @property
    def outcome(self) -> Json:
        """The result without a plan, for people."""
        return self.result if self.plan is None else {}

    def __str__(self) -> str:
        return f"job {self.job_id} ({self.kind} {self.slot}, attempt {self.attempt})"


def hold_purpose(job: str, attempt: int) -> str:
    """The name of the critical holds of an attempt, so that the process that ends it finds them."""
    return f"job {job} attempt {attempt}"


def job_id(object_id: str, kind: str, slot: str) -> str:
    """The id of a job: `uuid5(object id, "<kind>/<slot>")`.

    An object id that isn't a UUID is replaced by `uuid5(nil UUID, object id)`.

    Raises `BadInput` if a name is empty or too long, or if `kind` contains a slash.
    """
    for what, text in (("object id", object_id), ("kind", kind), ("slot", slot)):
        if not text or len(text) > _MAX_NAME or not text.isprintable():
            raise BadInput(f"job {what} {text!r}: expected 1 to {_MAX_NAME} printable characters")
    if "/" in kind:
        raise BadInput(f"job kind '{kind}': a slash is not allowed")
    try:
        namespace = uuid.UUID(object_id)
    except ValueError:
        namespace = uuid.uuid5(_NOT_A_UUID, object_id)
    return str(uuid.uuid5(namespace, f"{kind}/{slot}"))


def one_line(error: Exception) -> str:
    """The text with which an error is recorded, including its hint."""
    text = " ".join(str(error).split()) or type(error).__name__
    hint = error.hint if isinstance(error, HoldfastError) else ""
    return (f"{text}; {hint}" if hint else text)[:_MAX_ERROR]
