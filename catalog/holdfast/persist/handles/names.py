"""Names for shards. A separate shard of the location maps each name to a shard id.

- A name belongs to one shard, and a shard has at most one name. One multi-write creates the shard and its
  name. If several processes do this at once, the upper of the names shard decides which one wins.
- An existing name is never given to another shard. If its shard was finalized, the name stays until it is
  forgotten, so that processes that still use it get an error.
- The names shard is read only at its newest time. The commit that moves its upper also moves its since to
  `upper - 1`.
"""

import unicodedata
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.errors import (
    AsOfTooEarly,
    BadInput,
    CorruptBlob,
    NotWritable,
    ShardFinalized,
    UpperMismatch,
)
from holdfast.persist.handles.critical import prepare_critical, prepare_downgrade_critical
from holdfast.persist.handles.read import ReadHandle
from holdfast.persist.handles.write import open_writer, prepare_create, prepare_finalize
from holdfast.persist.ids import new_id, shard_id
from holdfast.persist.multi_write import Prepared, multi_write
from holdfast.persist.rows.schema import DIFF, Schema
from holdfast.persist.session import Session
from holdfast.persist.state.state import WriteMode
from holdfast.persist.state.transition import check_mode

NAMES_SCHEMA: Final = Schema.of({"name": "string"}, {"shard": "string"})
RETENTION_PURPOSE: Final = "names retention"
MOST_CHARACTERS: Final = 255


def names_shard_id(location_id: uuid.UUID) -> str:
    """Return the id of the shard that contains the names of a location."""
    return shard_id(uuid.uuid5(location_id, "names"))


def check_name(name: str) -> str:
    """Return `name`. Raises `BadInput` if it is hard to type, or could look the same as a different name."""
    if not isinstance(name, str) or not 0 < len(name) <= MOST_CHARACTERS:
        raise BadInput(
            f"the name of a shard must be a string of 1 to {MOST_CHARACTERS} characters, not {name!r:.80}"
        )
    if not name.isprintable() or name != name.strip():
        raise BadInput(f"the name {name!r} has invisible characters, or begins or ends with spaces")
    if not unicodedata.is_normalized("NFC", name):
        raise BadInput(
            f"the name {name!r} is not in the normal form NFC", hint="use unicodedata.normalize('NFC', name)"
        )
    return name


def read_names(session: Session) -> tuple[int, dict[str, str]]:
    """Return the upper of the names shard, and the ids of shards by name. Linearized."""
    machine = session.machine(names_shard_id(session.location.location_id))
    while True:
        upper = machine.refresh().upper
        if upper == 0:
            return 0, {}
        try:
            found = ReadHandle(session, machine, None).snapshot(upper - 1).to_table()
        except AsOfTooEarly:
            # Somebody named another shard meanwhile.
            continue
        names = dict(zip(found.column("name").to_pylist(), found.column("shard").to_pylist(), strict=True))
        if len(names) != found.num_rows or set(found.column(DIFF).to_pylist()) - {1}:
            raise CorruptBlob(
                f"the names shard {machine.shard_id}", "each name once", "one more or less often"
            )
        return upper, names


def create_or_load(session: Session, name: str, schema: Schema, mode: WriteMode) -> str:
    """Return the shard with a name, or create it. Raises the errors of `PersistClient.create_or_load`."""
    check_name(name)
    while True:
        upper, names = read_names(session)
        if name in names:
            _check_usable(session, name, names[name], schema, mode)
            return names[name]
        if session.mode == "read":
            raise NotWritable(f"no shard is named {name!r}, and a client of mode 'read' can't create one")
        shard = new_id("s")
        create = prepare_create(session, shard, schema, purpose=f"create {name}", mode=mode)
        if _change(session, upper, {name: (shard, 1)}, [create]):
            return shard


def forget(session: Session, name: str, *, finalize: bool) -> str:
    """Remove a name. Raises the errors of `PersistClient.forget`."""
    while True:
        upper, names = read_names(session)
        if name not in names:
            raise BadInput(f"no shard is named {name!r}", hint="PersistClient.names() lists all names")
        shard = names[name]
        effects = [prepare_finalize(session, shard)] if finalize else []
        if _change(session, upper, {name: (shard, -1)}, effects):
            return shard


def _check_usable(session: Session, name: str, shard: str, schema: Schema, mode: WriteMode) -> None:
    state = session.machine(shard).refresh()
    if state.finalized:
        raise ShardFinalized(
            f"the name {name!r} belongs to shard {shard}, which was finalized",
            hint="free the name with PersistClient.forget, then create the shard again",
        )
    try:
        check_mode(state, mode)
        state.schema_id(schema)
    except BadInput as error:
        raise type(error)(f"{name!r}: {error}", hint=error.hint) from None


def _change(
    session: Session, upper: int, names: Mapping[str, tuple[str, int]], effects: Sequence[Prepared]
) -> bool:
    """Add or remove names at `upper`, with `effects`. If the upper has moved, do nothing, return False."""
    names_shard = names_shard_id(session.location.location_id)
    rows = [{"name": name, "shard": shard, DIFF: diff} for name, (shard, diff) in names.items()]
    with open_writer(session, names_shard, NAMES_SCHEMA, purpose="names") as writer:
        commands = [
            writer.prepare_append(rows, upper, upper + 1),
            prepare_critical(session, names_shard, purpose=RETENTION_PURPOSE),
            prepare_downgrade_critical(session, names_shard, upper, purpose=RETENTION_PURPOSE),
            *effects,
        ]
        try:
            multi_write(session, commands)
        except UpperMismatch as mismatch:
            if mismatch.shard_id != names_shard:
                raise
            return False
    return True
