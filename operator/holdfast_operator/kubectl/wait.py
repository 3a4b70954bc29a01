"""Waits for the operator to finish a request, and shows its progress.

Invariants
- Each message is shown once, on stderr. Nothing is written to stdout.
- An earlier state is never taken for the outcome of the request. `outcome` gets only objects whose status
  describes the generation that the request created, or a later one.
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
"""Reasons of Stalled that the operator retries by itself."""


class NotYet(HoldfastError):
    """The request was not finished in time. It may still finish."""

    hint = "the operator continues: 'kubectl holdfast status' shows the progress"


class GivenUp(HoldfastError):
    """The request can't be finished without you."""


@dataclass(frozen=True)
class Done:
    """The request is finished. `message` describes the result."""

    message: str


def wait(
    cluster: Cluster,
    body: Json,
    outcome: Callable[[Json], Done | None],
    *,
    seconds: float,
    told: Callable[[Json], str],
) -> Json:
    """Waits until `outcome` returns a result, and returns the object. `told` describes the progress.

    Raises `GivenUp` if the object is Stalled or `outcome` raises it, and `NotYet` after `seconds`.
    """
    kind, name = kind_of(body), str(body["metadata"]["name"])
    generation, deadline, last = body["metadata"]["generation"], time.monotonic() + seconds, ""
    while True:
        found = cluster.get(kind, name)
        seen = found.get("status", {}).get("observedGeneration", -1) >= generation
        text = told(found) if seen else "waiting for the operator to see it"
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
