"""A readable trace of a world: short names, versions with their changes, and one setting on each line."""

from dataclasses import fields
from typing import Any

from holdfast.persist.stores import Entry
from sim.scheduler import EPOCH_S


def short(key: str) -> str:
    """A key with each id in it cut to its kind and first digits."""
    return "/".join(name[:5] for name in key.split("/"))


def answer(given: object) -> str:
    """What a store answered."""
    match given:
        case None:
            return "ok"
        case bool():
            return "yes" if given else "no"
        case int() if given > EPOCH_S * 500:
            return f"{given / 1000 - EPOCH_S:.4f}"
        case int():
            return str(given)
        case bytes():
            return f"{len(given):,} bytes"
        case dict():
            return ", ".join(f"{short(key)} v{entry.seqno}" for key, entry in given.items()) or "nothing"
        case [Entry(), *_]:
            return f"v{given[0].seqno} to v{given[-1].seqno}"
        case _:
            return "..."


def version(diff: Any) -> str:
    """What a version of a shard changed."""
    told = [_change(change) for change in diff.changes]
    garbage = told.count(_GARBAGE)
    told = [each for each in told if each != _GARBAGE] + ([f"{garbage} blobs are garbage"] if garbage else [])
    return f"{short(diff.shard_id)} v{diff.seqno}: {', '.join(told)}"


_GARBAGE = "garbage"


def _change(change: Any) -> str:
    # By name: the classes are those of the code that the audit trusts, perhaps not those imported here.
    match type(change).__name__:
        case "AppendBatch":
            return f"batch {_batch(change.batch)}"
        case "ReplaceBatches":
            ids = " ".join(map(str, change.batch_ids))
            return f"batches {ids} become {_batch(change.batch) if change.batch else 'nothing'}"
        case "Put" if type(change.value).__name__ == "Garbage":
            return _GARBAGE
        case "Put":
            return f"{type(change.value).__name__} {_value(change.value)}"
        case "Drop":
            return f"no {change.kind.__name__} {short(str(change.id))}"
        case name:
            values = " ".join(str(getattr(change, field.name)) for field in fields(change))
            return f"{name} {values}"[:80].strip()


def _batch(batch: Any) -> str:
    return f"{batch.id} [{batch.lower}, {batch.upper}) of {batch.rows} rows, level {batch.level}"


def _value(value: Any) -> str:
    match type(value).__name__:
        case "Writer":
            return f"{short(value.id)} ({value.purpose}) to {value.last_upper}"
        case "LeasedReader":
            return f"{short(value.id)} ({value.purpose}) since {value.since}, holds v{value.seqno_hold}"
        case "CriticalReader":
            return f"{value.purpose} since {value.since}"
        case "Rollup":
            return f"v{value.seqno}"
        case _:
            return short(str(getattr(value, "id", "")))


def settings(value: Any) -> list[str]:
    """The fields of a dataclass that differ from their defaults, a line each."""
    told = [(field.name, getattr(value, field.name), field.default) for field in fields(value)]
    return [f"  {name} = {found!r}" for name, found, default in told if found != default]
