"""Bugs to plant: each proves that the simulation would notice if the line it changes were wrong."""

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Edit:
    """In the source of `where` (module and name), `old` gives way to `new`."""

    where: str
    old: str
    new: str
    also: tuple[str, ...] = ()
    """Modules that import the name."""


@dataclass(frozen=True, slots=True)
class Bug:
    """A name that tells the story, and the edits that plant it."""

    name: str
    edits: tuple[Edit, ...]


BUGS = (
    Bug(
        "an append does not recognize itself",
        (
            Edit("transition._append", "known.last_token == command.token", "False"),
            Edit("machine._landed", "writer.last_token == command.token", "False"),
        ),
    ),
    Bug(
        "an append of unknown outcome is taken for one that failed",
        (Edit("machine._commit_locked", "unsettled = error", "unsettled = Determinate(str(error))"),),
    ),
    Bug(
        "a rejection on an old version is final",
        (Edit("machine._commit_locked", "and not fresh:", "and False:"),),
    ),
    Bug(
        "only the first shard of a multi-write is committed",
        (Edit("machine._commit_locked", "compare_and_set(puts, expect)", "compare_and_set(puts[:1], ())"),),
    ),
    Bug(
        "a compare-and-set below the truncation point wins",
        (
            Edit(
                "storage.memory.MemoryConsensus.compare_and_set",
                "any(self._head(put.key) != put.seqno - 1 for put in puts)",
                "any(self._head(p.key) != p.seqno - 1 and p.seqno >= self._logs[p.key][0].seqno"
                " for p in puts if p.key in self._logs)",
            ),
        ),
    ),
    Bug(
        "since passes a hold",
        (Edit("transition._advance_since", "min(min(holds),", "min(max(holds),"),),
    ),
    Bug(
        "a seal extends the first batch",
        (
            Edit(
                "state.apply",
                "(*batches[:-1], replace(batches[-1], upper=upper))",
                "(replace(batches[0], upper=upper), *batches[1:])",
                also=("machine",),
            ),
        ),
    ),
    Bug(
        "compaction drops an update",
        (
            Edit("compaction._merged", "sources, since)", "sources, since).slice(1)"),
            Edit("compaction._merged", "yield piece\n", "yield piece.slice(1)\n"),
        ),
    ),
    Bug(
        "compaction moves times beyond since",
        (
            Edit("compaction._merged", "state.schema, state.since", "state.schema, state.since + 1"),
            Edit(
                "compaction.compact",
                "InstallCompaction(ids, state.since,",
                "InstallCompaction(ids, 0,",
                also=("upkeep",),
            ),
        ),
    ),
    Bug(
        "a compaction is installed over other batches than it was made from",
        (
            Edit(
                "transition._install_compaction",
                "    if command.batch_ids[0] not in ids:\n        return NoOp(False)\n"
                "    start = ids.index(command.batch_ids[0])\n",
                "    start = ids.index(command.batch_ids[0]) if command.batch_ids[0] in ids else 0\n",
            ),
            Edit(
                "transition._install_compaction",
                "tuple(batch.id for batch in replaced) != command.batch_ids",
                "len(replaced) != len(command.batch_ids)",
            ),
            Edit(
                "transition._install_compaction",
                "ReplaceBatches(command.batch_ids, batch)",
                "ReplaceBatches(tuple(batch.id for batch in replaced), batch)",
            ),
        ),
    ),
    Bug(
        "garbage goes while a reader holds its version",
        (Edit("garbage.deletable", "garbage.seqno <= hold and ", ""),),
    ),
    Bug(
        "the log is cut above the newest rollup",
        (
            Edit(
                "garbage.collect_garbage",
                "newest.seqno + 1 if newest else 0",
                "state.seqno",
                also=("upkeep",),
            ),
        ),
    ),
    Bug(
        "the parts of an append of unknown outcome are deleted",
        (
            Edit(
                "client.PersistClient.multi_write",
                "    except Indeterminate:\n",
                "    except Indeterminate:\n        self._discard(appends)\n",
            ),
        ),
    ),
    Bug(
        "a reader overlooks parts that are gone",
        (Edit("snapshot.Snapshot._consolidate", "if part.lower <= self.as_of", "if _there(self, part)"),),
    ),
    Bug(
        "a listen goes on after its hold was lost",
        (Edit("read.Listen.next", "state.since >= self.frontier", "False"),),
    ),
    Bug(
        "a listen skips the first time",
        (Edit("read.Listen._updates", "from_time=self.frontier", "from_time=self.frontier + 1"),),
    ),
)


def _there(snapshot: Any, part: Any) -> bool:
    blob = snapshot._machine.location.blob
    return part.lower <= snapshot.as_of and (part.blob_key is None or blob.get(part.blob_key) is not None)


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Run the block with the bug in the code."""
    with ExitStack() as stack:
        for edit in bug.edits:
            stack.enter_context(_edited(edit))
        yield


@contextmanager
def _edited(edit: Edit) -> Iterator[None]:
    module, owner, name = _find(edit.where)
    original = getattr(owner, name)
    source = textwrap.dedent(getattr(original, "planted_source", None) or inspect.getsource(original))
    if source.count(edit.old) < 1:
        raise LookupError(f"{edit.where} has no {edit.old!r} any more: plant this bug elsewhere")
    source = source.replace(edit.old, edit.new)
    space: dict[str, Any] = {}
    exec(compile(source, f"<{edit.where} with a bug>", "exec"), {**vars(module), "_there": _there}, space)
    changed = space[name]
    # The function must see what else is planted in its module, now and later.
    changed = type(changed)(changed.__code__, vars(module), name, changed.__defaults__, changed.__closure__)
    changed.__kwdefaults__ = space[name].__kwdefaults__
    changed.planted_source = source
    owners = [owner, *(importlib.import_module(f"holdfast.persist.{other}") for other in edit.also)]
    vars(module).setdefault("_there", _there)
    for each in owners:
        setattr(each, name, changed)
    try:
        yield
    finally:
        for each in owners:
            setattr(each, name, original)


def _find(where: str) -> tuple[ModuleType, Any, str]:
    path = where.split(".")
    for length in range(len(path) - 1, 0, -1):
        try:
            module = importlib.import_module(".".join(["holdfast.persist", *path[:length]]))
        except ModuleNotFoundError:
            continue
        owner: Any = module
        for attribute in path[length:-1]:
            owner = getattr(owner, attribute)
        return module, owner, path[-1]
    raise LookupError(where)
