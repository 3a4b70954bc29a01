"""What happened, newest first: Events, changes of conditions, commands and jobs, in one list. Pure.

Events and conditions come from the resources of a cluster, as they are in the API. Commands and jobs come
from the records of a location, which keep commands for 30 days.

Invariants
- The list is bounded: `MOST_ENTRIES` entries with texts of at most `MOST_TEXT` characters.
- A text has no control characters, and no password of a URL. So a page shows it as it is.
- An entry without a valid time is left out.
"""

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

from holdfast.collections.periods import shown_period
from holdfast.collections.record.jobs import JobRecord, JobState
from holdfast.collections.record.state import CommandRecord
from holdfast.collections.who import parse_who
from holdfast.console.facts.rows import moment as shown_moment
from holdfast.text import cut, one_line, without_passwords

Json = Mapping[str, Any]

MOST_ENTRIES: Final = 500
MOST_TEXT: Final = 1000
_TIMES: Final = frozenset({"at", "as_of", "since", "upper", "held_from", "held_to"})
_CHECKSUM: Final = re.compile("[0-9a-f]{32,}")
_REFERENCES: Final = ("catalogRef", "collectionRef")


class ActivitySource(StrEnum):
    """Where an entry comes from."""

    EVENT = "event"
    CONDITION = "condition"
    COMMAND = "command"
    JOB = "job"


@dataclass(frozen=True, slots=True, order=True)
class ObjectName:
    """What an entry is about: a resource, or a collection of a location without a resource.

    `namespace` is empty if it is no resource.
    """

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return "/".join(filter(None, (self.kind, self.namespace, self.name)))


@dataclass(frozen=True, slots=True)
class ActivityEntry:
    """Something that happened. `at_ms` is wall time.

    `by` is who did it, such as the program of a command, and `token` its fence token as text. Both may be
    empty. `times` is how often it happened until `at_ms`.
    """

    at_ms: int
    source: ActivitySource
    about: ObjectName
    what: str
    text: str
    by: str = ""
    token: str = ""
    is_warning: bool = False
    times: int = 1


def name_of(body: Json) -> ObjectName:
    """The name of a resource."""
    metadata = body["metadata"]
    return ObjectName(body["kind"], metadata["namespace"], metadata["name"])


def parse_name(text: str) -> ObjectName | None:
    """The name that `str` of an `ObjectName` gives, or None for any other text."""
    parts = text.split("/")
    match parts:
        case [kind, name] if kind and name:
            return ObjectName(kind, "", name)
        case [kind, namespace, name] if kind and namespace and name:
            return ObjectName(kind, namespace, name)
        case _:
            return None


def newest(
    entries: Iterable[ActivityEntry], about: frozenset[ObjectName] | None = None
) -> list[ActivityEntry]:
    """The latest `MOST_ENTRIES` entries, newest first. With `about`, only those about these objects."""
    chosen = (each for each in entries if about is None or each.about in about)
    return heapq.nlargest(MOST_ENTRIES, chosen, key=attrgetter("at_ms"))


def related(name: ObjectName, bodies: Iterable[Json]) -> frozenset[ObjectName]:
    """The names of a resource and of everything that refers to it, directly or through another one.

    A Catalog comes with its collections, its migrations and the snapshots of its collections.
    """
    refers: dict[tuple[str, str, str], list[ObjectName]] = {}
    for body in bodies:
        for field in _REFERENCES:
            if referred := body.get("spec", {}).get(field, {}).get("name"):
                place = (field, body["metadata"]["namespace"], str(referred))
                refers.setdefault(place, []).append(name_of(body))
    fields = {"Catalog": "catalogRef", "StorageCollection": "collectionRef"}
    found, left = {name}, [name]
    while left:
        each = left.pop()
        more = refers.get((fields.get(each.kind, ""), each.namespace, each.name), ())
        left += (other for other in more if other not in found)
        found.update(more)
    return frozenset(found)


def of_events(events: Iterable[Json]) -> Iterator[ActivityEntry]:
    """The entries of Events."""
    for event in events:
        about = event.get("involvedObject", {})
        series = event.get("series") or {}
        at = (
            moment(series.get("lastObservedTime"))
            or moment(event.get("lastTimestamp"))
            or moment(event.get("eventTime"))
        )
        if at is None:
            continue
        yield ActivityEntry(
            at,
            ActivitySource.EVENT,
            ObjectName(
                str(about.get("kind", "")), str(about.get("namespace", "")), str(about.get("name", ""))
            ),
            shown_text(event.get("reason")),
            shown_text(event.get("message")),
            by=shown_text(event.get("reportingInstance") or event.get("reportingComponent")),
            is_warning=event.get("type") == "Warning",
            times=max(1, int(series.get("count") or event.get("count") or 1)),
        )


def of_conditions(bodies: Iterable[Json]) -> Iterator[ActivityEntry]:
    """The last change of each condition of resources."""
    for body in bodies:
        for condition in body.get("status", {}).get("conditions", ()):
            at = moment(condition.get("lastTransitionTime"))
            if at is not None:
                what = f"{condition['type']} is {condition['status']}"
                text = f"{condition.get('reason', '')}: {condition.get('message', '')}"
                yield ActivityEntry(
                    at, ActivitySource.CONDITION, name_of(body), shown_text(what), shown_text(text)
                )


def of_commands(
    commands: Iterable[CommandRecord], names: Mapping[str, ObjectName]
) -> Iterator[ActivityEntry]:
    """The entries of a controller's commands. `names` are the names of collections by id."""
    for each in commands:
        who = parse_who(each.who)
        by = who.program if who.user is None else f"{who.program} ({who.user})"
        yield ActivityEntry(
            each.at_ms,
            ActivitySource.COMMAND,
            names.get(each.object_id) or ObjectName("collection", "", each.object_id),
            each.kind.name.lower().replace("_", " "),
            shown_text(result_text(each.result)),
            by=shown_text(f"{by} on {each.host}" if each.host else by),
            token=shown_text(each.token),
        )


def of_jobs(jobs: Iterable[JobRecord], names: Mapping[str, ObjectName]) -> Iterator[ActivityEntry]:
    """The start and the end of each job's latest attempt."""
    for each in jobs:
        about = names.get(each.object_id) or ObjectName("collection", "", each.object_id)
        attempt = slot_text(each.slot) + (f", attempt {each.attempt}" if each.attempt > 1 else "")
        by = shown_text(each.by)
        if each.started_ms:
            yield ActivityEntry(
                each.started_ms, ActivitySource.JOB, about, f"{shown_text(each.kind)} started", attempt, by=by
            )
        if each.finished_ms and each.state is not JobState.RUNNING:
            failed = each.state is JobState.FAILED
            yield ActivityEntry(
                each.finished_ms,
                ActivitySource.JOB,
                about,
                f"{shown_text(each.kind)} {'failed' if failed else 'is done'}",
                shown_text(f"{attempt}: {each.error}" if failed else attempt),
                by=by,
                is_warning=failed,
            )


def result_text(result: Json) -> str:
    """The result of a command or a job for people: times as dates, and numbers in groups."""
    return ", ".join(_named(name, value) for name, value in result.items())


def slot_text(slot: str) -> str:
    """The slot of a job. Of one that is the checksum of a file, the beginning."""
    return f"{slot[:9]}…" if _CHECKSUM.fullmatch(slot) else slot


def _named(name: str, value: Any) -> str:
    match value:
        case _ if name == "retain_ms":
            return f"retain {shown_period(value)}"
        case str() if name == "recipe":
            return f"recipe {value.lower()}"
        case dict():
            # Of comments, only the names of the columns.
            shown = " ".join(value)
        case bool() | str():
            shown = str(value)
        case int() if name in _TIMES:
            shown = shown_moment(value)
        case int():
            shown = f"{value:,}"
        case _:
            shown = str(value)
    return f"{name.replace('_', ' ')} {shown}"


def moment(text: object) -> int | None:
    """A time of the API in milliseconds, or None if it has no valid form."""
    try:
        return round(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def shown_text(text: object) -> str:
    """A text of others for a page: one line, without passwords of URLs, and bounded. Empty for None."""
    return one_line(cut(without_passwords("" if text is None else str(text)), MOST_TEXT))
