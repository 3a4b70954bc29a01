"""Waits for an outcome that the operator brings, and shows what it says on the way.

Invariants
- Each thing that is said is shown once, on stderr; nothing is written to stdout.
- What was there before the request is never taken for its outcome: `outcome` gets only objects whose status
  is of the generation that the request made, or a later one.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import click

from holdfast.errors import HoldfastError
from holdfast_operator.kubectl import names
from holdfast_operator.kubectl.cluster import Cluster
from holdfast_operator.kubectl.picture import kind_of, state_of

Json = dict[str, Any]

_POLL_SECONDS: Final = 1.0
_PASSING: Final = {"StoreUnreachable", "InternalError"}
"""Reasons of Stalled that go by themselves."""


class NotYet(HoldfastError):
    """What was waited for did not come; it may still."""

    hint = "the operator goes on: 'kubectl holdfast status' tells how far it is"


class GivenUp(HoldfastError):
    """What was asked for will not come by itself."""


@dataclass(frozen=True)
class Done:
    """What was waited for came; `message` says it."""

    message: str


def wait(
    cluster: Cluster,
    body: Json,
    outcome: Callable[[Json], Done | None],
    *,
    seconds: float,
    told: Callable[[Json], str],
) -> Json:
    """Wait until `outcome` of an object is there; the object then. `told` is how far it is.

    Raises `GivenUp` where the object is Stalled, by `outcome` too, `NotYet` after so many seconds.
    """
    kind, name = kind_of(body), str(body["metadata"]["name"])
    generation, deadline, last = body["metadata"]["generation"], time.monotonic() + seconds, ""
    while True:
        found = cluster.get(kind, name)
        seen = found.get("status", {}).get("observedGeneration", -1) >= generation
        text = told(found) if seen else "waits for the operator to see it"
        if text != last:
            click.echo(f"{datetime.now(UTC):%H:%M:%S}  {text}", err=True)
            last = text
        if seen:
            if done := outcome(found):
                click.echo(f"{datetime.now(UTC):%H:%M:%S}  {done.message}", err=True)
                return found
            state = state_of(found)
            if state.word == "Stalled" and state.reason not in _PASSING:
                raise GivenUp(f"{names.short(kind)}/{name}: {state.reason}: {state.message}")
        if time.monotonic() >= deadline:
            raise NotYet(f"{names.short(kind)}/{name} is not done after {seconds:.0f} s: {text}")
        time.sleep(_POLL_SECONDS)
