"""`holdfast ingest`: feed a collection from a source, in this process.

The spec is a YAML file with the `source` block of a StorageCollection, the name of the collection, and its
columns if the command may create it. The command can be killed and repeated at any time, and several may run.
"""

import gc
import signal
import threading
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.collection.place import controller_of, location_options
from holdfast.cli.facts import count, json_option, shown, shown_moment, size, tell
from holdfast.cli.location import LocationUrls
from holdfast.cli.progress import note
from holdfast.errors import CLOSED, BadInput
from holdfast.extras import needs
from holdfast.text import naming, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.ingest import IngestSpec, IngestStep
    from holdfast.persist import Schema


@click.command(short_help="Feed a collection from files, Kafka, Postgres, another collection.")
@location_options
@click.argument("spec_file", metavar="SPEC", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--rendition",
    metavar="ID",
    default="",
    help="Feed this rendition. It is created if there is none. Default: the current one.",
)
@click.option(
    "--anew", is_flag=True, help="A new rendition begins as the spec says, whatever the current one has."
)
@click.option("--once", is_flag=True, help="End at the present end of the source. Default: follow it.")
@json_option
def ingest(
    location: LocationUrls, spec_file: Path, rendition: str, anew: bool, once: bool, as_json: bool
) -> None:
    """Feed the collection that SPEC names from its source, exactly once.

    \b
    holdfast ingest orders.yaml --once

    \b
    collection: orders
    key: {id: int64}
    columns: {customer: 'string?', amount: 'float64?'}
    source:
      files: {path: /data/orders, pattern: '*.jsonl'}
      format: {json: {}}
      envelope: Upsert

    Rows and their position in the source are committed together. So you can kill the command and repeat it,
    or run several of them: each message counts once. Records that can't be decoded don't stop the others:
    see 'holdfast collection errors'. Ctrl-C or SIGTERM ends after the present step.
    While it reads from Postgres it ends at once, and what it read is read again next time.

    In Postgres the command makes a replication slot, which keeps WAL until it is dropped. 'holdfast
    collection describe' shows its name.

    With --rendition the command fills another rendition, with another format for example. It reads the same
    messages as the current one, for the same times. 'holdfast collection handover' makes it current. The
    command that fed the old rendition then ends.
    """  # noqa: D301 - the escape is for the formatter of the help
    name, schema, spec = _read(spec_file)
    from holdfast.ingest import ingestion_of
    from holdfast.ingest.ingestion import IngestTotal
    from holdfast.ingest.waits import Waits

    with (
        controller_of(location.open_to_write(create=schema is not None)) as controller,
        ingestion_of(
            controller,
            name,
            spec,
            schema,
            rendition=rendition,
            anew=anew,
            continues=not once,
            waits=Waits(note),
        ) as ingestion,
        _stop_requested() as ended,
    ):
        # The garbage collector runs often while messages come. It need not look at all that was imported.
        gc.freeze()
        total = IngestTotal()
        note(f"feeding {name} from {one_line(ingestion.source_name)}")

        def on_step(step: "IngestStep") -> None:
            total.add(step)
            _show_step(step)

        ingestion.run(once=once, stopped=ended.wait, on_step=on_step)
        fed = ingestion.rendition
    bad = f", {count(total.errors, 'bad record')}" if total.errors else ""
    upper = f": complete up to {shown(total.upper)}" if total.upper else ""
    what = f"{count(total.messages, 'message')}, {count(total.updates, 'update')}"
    lines = [f"fed {name} with {what}{bad}{upper}"]
    has_ended = total.upper >= fed.held_to < CLOSED
    if has_ended:
        lines.append(f"{name} was handed over at {shown_moment(fed.held_to)}: rendition {fed.id} has ended")
    facts = {"name": name, "rendition": fed.id, **asdict(total), "has_ended": has_ended}
    tell(facts, *lines, as_json=as_json)


@contextmanager
def _stop_requested() -> "Iterator[threading.Event]":
    """An event that Ctrl-C and SIGTERM set in the block. Afterwards both do what they did before."""
    ended = threading.Event()
    former = {
        number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield ended
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _show_step(step: "IngestStep") -> None:
    if step.messages:
        bad = f", {count(step.errors, 'bad record')}" if step.errors else ""
        what = f"{count(step.messages, 'message')} ({size(step.bytes)}), {count(step.updates, 'update')}"
        upper = " of those there were before" if step.fills else f": complete up to {shown(step.upper)}"
        behind = f", {count(step.behind, 'message')} behind" if step.behind else ""
        note(f"{what}{bad}{upper}{behind}")


def _read(file: Path) -> "tuple[str, Schema | None, IngestSpec]":
    """The collection, its schema if the file has one, and the spec."""
    with needs("ingest", "holdfast ingest"):
        import yaml

    try:
        given = yaml.safe_load(file.read_text())
    except OSError as error:
        raise BadInput(f"can't read {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(given, dict):
        raise BadInput(f"{file} must be a YAML file with the fields collection and source")
    if unknown := set(map(str, given)) - {"collection", "key", "columns", "source"}:
        raise BadInput(
            f"{file} has an unknown field '{min(unknown)}'",
            hint="it may have collection, key, columns, source",
        )
    name = given.get("collection")
    if not isinstance(name, str) or not name:
        raise BadInput(f"{file} needs 'collection': the name of the collection to feed")
    from holdfast.ingest import parse
    from holdfast.persist import Schema

    key, columns = (_columns(given.get(each), f"{file}: {each}") for each in ("key", "columns"))
    with naming(str(file)):
        schema = Schema.of(key=key, value=columns) if key or columns else None
        return name, schema, parse(given.get("source"), "source")


def _columns(given: Any, where: str) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(each, str) for each in (*given, *given.values())):
        raise BadInput(f"{where} must be a block of name: type, such as {{id: int64}}")
    return given
