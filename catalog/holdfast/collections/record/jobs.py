"""JobRecords: what a piece of work was asked to do, which attempt may commit it, and how it ended.

A job is one (object, kind, slot); a slot is, for example, the scheduled time of a snapshot. Whoever runs an
attempt commits its effects together with the record's step from Running(attempt) to Done, so that of several
drivers of one job, zombies included, exactly one takes effect.

What an attempt reads is kept by a critical hold on the metadata shard of its collection, which has no lease
and is named after the attempt. It is taken in a step that depends on the record being Running at that
attempt, and released by nothing but the step that ends the attempt: a kill at any moment leaves none behind
once the job is over, and of several drivers of one attempt none takes it from the others.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from holdfast.errors import BadInput, HoldfastError

Json = Mapping[str, Any]

AS_OF: Final = "as_of"
"""In the spec of a job: the time that it reads its collection as of, which each of its attempts holds."""
BATCH: Final = "batch"
"""In the result of the job that stands for a stream: the number of the last batch that was written."""

_MAX_NAME: Final = 255
_MAX_ERROR: Final = 1000
_NOT_A_UUID: Final = uuid.UUID(int=0)


class JobState(IntEnum):
    """Where an attempt is; the numbers are those of the stored record."""

    RUNNING = 1
    DONE = 2
    FAILED = 3


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job. `attempt` counts from 1; `started_ms`, `finished_ms` (0: not yet) and `by` are the latest one's.

    `by` is who runs it, in a word; empty where that is the process that started it. `failures` is how many of
    its attempts failed of themselves since somebody else ran it: those that were stopped or abandoned say
    nothing of the job.
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
        """The time that its spec says it reads its collection as of."""
        found = self.spec.get(AS_OF)
        return found if isinstance(found, int) else None

    def __str__(self) -> str:
        return f"job {self.job_id} ({self.kind} {self.slot}, attempt {self.attempt})"


def hold_purpose(job: str, attempt: int) -> str:
    """What the critical holds of an attempt are named, so that whoever ends it finds them."""
    return f"job {job} attempt {attempt}"


def job_id(object_id: str, kind: str, slot: str) -> str:
    """The id of a job: `uuid5(object id, "<kind>/<slot>")`.

    An object id that isn't a UUID stands for `uuid5(nil UUID, object id)`.

    Raises `BadInput` where a name is empty or too long, or `kind` holds a slash.
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
    """An error as it is put on record, with what to do about it."""
    text = " ".join(str(error).split()) or type(error).__name__
    hint = error.hint if isinstance(error, HoldfastError) else ""
    return (f"{text}; {hint}" if hint else text)[:_MAX_ERROR]
