"""`holdfast persist recover`: create the logs anew after the consensus store was lost.

The exit code is 0 only if every log is whole, so that nothing is lost. If a log was lost, nobody knows
whether anything was committed after the newest rollup. The exit code is 1 then too. It is also 1, and nothing
is written, if a shard has two histories and none was chosen.
"""

import shlex
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli.facts import count, emit_json, json_option, moment, shown_moment
from holdfast.cli.location import open_to_look, open_to_write
from holdfast.cli.persist.arguments import ShardCommand, location_arguments
from holdfast.cli.progress import ProgressLine
from holdfast.cli.rows.text import render
from holdfast.errors import BadInput, HoldfastError
from holdfast.text import one_line

if TYPE_CHECKING:
    from holdfast.collections.recovery import Recovered, RecoveredCollection
    from holdfast.persist import PersistClient
    from holdfast.persist.admin.accept import Side, TwoHistories
    from holdfast.persist.admin.recover import RecoveryPlan
    from holdfast.persist.admin.recoverable import Choice, ShardPlan
    from holdfast.persist.stores import Location

_MOST_SHOWN: Final = 20
"""Shards with two histories that are shown to people; JSON has all."""


@click.command(cls=ShardCommand, short_help="Create the logs anew after the consensus store was lost.")
@location_arguments
@click.option("--yes", is_flag=True, help="Recover. Without --yes nothing is written.")
@click.option(
    "--restored", is_flag=True, help="Treat the consensus store as an older copy, even if nothing shows it."
)
@click.option(
    "--take",
    multiple=True,
    metavar="WHICH",
    help="For shards with two histories, keep the 'log', the 'newest' version, or SHARD=VERSION.",
)
@click.option(
    "--accept",
    is_flag=True,
    help="Keep the histories that the logs have now, and allow garbage collection again. Clients may run.",
)
@json_option
@click.pass_context
def recover(
    ctx: click.Context,
    url: str,
    consensus: str | None,
    yes: bool,
    restored: bool,
    take: tuple[str, ...],
    accept: bool,
    as_json: bool,
) -> None:
    """Create the logs of all shards of a location anew from its blob store.

    \b
    holdfast persist recover
    holdfast persist recover --yes

    Use this if the consensus store was lost, or restored from an older copy. Stop every other client first.
    What was committed after the newest rollup of a shard is lost, and clients that know it must not continue.
    Without --yes this shows what can be recovered and what can't. No blob is deleted.

    If clients wrote to an older copy, shards have two histories. Choose one with --take; the other one is
    lost. Exit code 1 means that something is lost, that nobody knows whether something is, or that you must
    choose a history first.

    The table has a row for each shard. OF is what the shard is for. LOG ENDS is the newest version in its log
    now. COMES BACK AT is the version that it continues from. UPPER is the time up to which that version is
    complete. LEFTOVER BLOBS counts the blobs that this version does not need. NOTE says what is lost.

    With --accept no log is created anew. After a failover that lost commits, the clients that knew these
    commits end, and nothing of their shards is deleted until you decide. --accept shows these shards, and
    exits with 1 if there are any. With --yes it keeps the history that each log has now, even while clients
    write, and exits with 0.
    """  # noqa: D301 - the escape is for the formatter of the help
    if accept:
        if restored or take:
            raise BadInput(
                "--accept keeps the logs as they are, and can't be used with --restored or --take",
                hint="leave out --accept, or leave out --restored and --take",
            )
        undecided = _accept(url, consensus, yes=yes, as_json=as_json)
        ctx.exit(1 if undecided else 0)
    from holdfast.persist.admin.recover import Recovery
    from holdfast.persist.stores.location import BLOB_KEY
    from holdfast.persist.stores.url import arguments_of, open_for_recovery

    choice = _choice(take)
    whole, blob = (url, None) if consensus is None else (None, url)
    with ExitStack() as stack:
        blobs, logs, absent = open_for_recovery(
            whole, blob=blob, consensus=consensus, write=yes, proof=BLOB_KEY
        )
        stack.callback(blobs.close)
        stack.callback(logs.close)
        with ProgressLine("looking at") as progress:
            recovery = Recovery(blobs, logs, choice=choice, looking_at=progress)
        plan = recovery.plan
        found = _look(recovery.preview())
        undecided = any(shard.undecided for shard in plan.shards)
        if undecided:
            # The records of collections may be among them; by the logs as they are most shards have a name.
            found = replace(found, shards=_purposes(recovery.opened()) | found.shards)
        facts = {"plan": plan, "collections": found.collections, "shards": found.shards}
        torn = any(each.lagging for each in found.collections)
        if plan.healthy and not restored and not torn:
            _check_one_history(recovery.opened())
            if as_json:
                emit_json({"done": False, **facts})
            else:
                click.echo("the consensus store is healthy: there is nothing to recover", err=True)
                click.echo("if it is an older copy all the same, pass --restored", err=True)
            return
        done = yes and not undecided
        if done and not (plan.healthy and not restored):
            recovery.run(restored=restored)
        if done:
            _mend(recovery.opened())
    incomplete = bool(restored or undecided or not plan.complete or torn or found.problem) or any(
        each.problem for each in found.collections
    )
    if as_json:
        emit_json({"done": done, **facts})
    else:
        _show(plan, found, absent, done=done, restored=restored)
        again = [*(["--restored"] if restored else []), *(f"--take {shlex.quote(each)}" for each in take)]
        arguments = arguments_of(whole, blob=blob, consensus=consensus)
        _conclude(plan, arguments, again, done=done, restored=restored, torn=torn)
    ctx.exit(1 if incomplete else 0)


def _check_one_history(location: "Location") -> None:
    """Raise an error if all logs are whole, but some may have a different history than clients knew."""
    from holdfast.persist.state.divergence import why_keep

    client = _client(location, "read")
    # `existing` reads the newest version.
    found = [shard for shard in client.shards() if why_keep(client.session.existing(shard))]
    if found:
        raise HoldfastError(
            f"all logs are whole, but {count(len(found), 'shard')} may have two histories,"
            f" such as {found[0]}",
            hint="--accept shows why, and keeps the histories that the logs have; if the consensus store is"
            " an older copy, restore a newer one, or pass --restored",
        )


def _accept(url: str, consensus: str | None, *, yes: bool, as_json: bool) -> bool:
    """Show two histories, and with `yes` keep those of the logs. Returns whether some are undecided."""
    from holdfast.collections.recovery import UNNAMED_CATALOG
    from holdfast.persist.admin.accept import accept, two_histories
    from holdfast.persist.state.divergence import accept_line

    opened = open_to_write(url, consensus, create=False) if yes else open_to_look(url, consensus)
    with opened as client:
        found: list[TwoHistories] = []
        for shard in client.shards():
            machine = client.session.machine(shard)
            machine.refresh()
            histories = two_histories(machine)
            if histories is not None:
                found.append(histories)
                if yes:
                    accept(machine)
        if yes:
            accept_line(client.location, client.config.hostname)
        purposes = _purposes(client.location) if found else {}
        # A client that left a marker may know the organization of a catalog; the shard does not show it.
        by_client = {each.shard_id: each.of for each in found if each.of}
        purposes |= {
            shard: of
            for shard, of in by_client.items()
            if purposes.get(shard, UNNAMED_CATALOG) == UNNAMED_CATALOG
        }
    if as_json:
        why = {each.shard_id: each.others[0].why for each in found}
        shown = [asdict(replace(each, of=purposes.get(each.shard_id, ""))) for each in found]
        emit_json({"done": yes, "shards": why, "histories": shown})
        return bool(found) and not yes
    if not found:
        click.echo("there is nothing to accept: no shard has signs of two histories", err=True)
        return False
    _show_histories(found, purposes)
    click.echo(
        "likely causes are a failover to a lagging standby, a restored backup, and deleted objects",
        err=True,
    )
    verb = "accepted" if yes else "would accept"
    click.echo(f"{verb} the log of {count(len(found), 'shard')} that may have two histories", err=True)
    if yes:
        told = "each log stays as it is; the rows that only the other history has are lost, and their blobs"
        click.echo(f"{told} are deleted later as garbage", err=True)
        click.echo("clients that ended with LogRegressed stay ended: open new ones", err=True)
    else:
        told = "each log would stay as it is; the rows that only the other history has would be lost"
        click.echo(told, err=True)
    if not yes:
        click.echo(
            "nothing was written: pass --yes to do it, also while clients write; to keep the other history,"
            " stop all clients, and restore the newer state of the consensus store or see what"
            " 'holdfast persist recover' without --accept can bring back",
            err=True,
        )
    return not yes


def _show_histories(found: "list[TwoHistories]", purposes: dict[str, str]) -> None:
    """Print two rows or more for each shard: the history that is kept, and what is known of the other."""
    if not found:
        return
    rows: list[list[str]] = []
    for each in found[:_MOST_SHOWN]:
        of = purposes.get(each.shard_id, "-")
        rows.append([each.shard_id, of, "kept", *_facts(each.kept), "what the log has now"])
        rows += [["", "", "lost", *_facts(side), _note(side)] for side in each.others]
        if each.more:
            rows[-1][-1] += f"; {count(each.more, 'more sign')} of it"
    columns = ["SHARD", "OF", "HISTORY", "VERSION", "UPPER", "ON", "BY HOST", "NOTE"]
    click.echo(render(columns, rows), nl=False)
    if len(found) > _MOST_SHOWN:
        click.echo(f"and {count(len(found) - _MOST_SHOWN, 'more shard')}: --json shows all", err=True)


def _facts(side: "Side") -> list[str]:
    return [
        "unknown" if side.seqno is None else str(side.seqno),
        "unknown" if side.upper is None else shown_moment(side.upper),
        "unknown" if side.wall_ms is None else moment(side.wall_ms),
        side.hostname or "unknown",
    ]


def _note(side: "Side") -> str:
    how = {
        "client": "a client knew this version when it met the log's history",
        "rollup": "a rollup has this version",
    }.get(side.source, side.why)
    if side.lost is not None:
        how += f"; the log lacks {count(side.lost, 'version')} or more of it"
    if side.lost_after_ms is not None:
        how += f"; acknowledged writes after {moment(side.lost_after_ms)} may be lost"
    return how


def _purposes(location: "Location") -> dict[str, str]:
    """Return what each shard is for, according to the logs; empty if they can't be read."""
    from holdfast.collections.recovery import purposes

    try:
        return purposes(_client(location, "read"))
    except HoldfastError:
        return {}


def _choice(take: tuple[str, ...]) -> "Choice":
    from holdfast.persist.admin.recoverable import Choice

    versions: dict[str, int] = {}
    of_all: Any = None
    for each in take:
        shard, equals, version = each.partition("=")
        if equals and version.isdecimal():
            versions[shard] = int(version)
        elif each in ("log", "newest") and of_all in (None, each):
            of_all = each
        else:
            raise BadInput(
                f"--take {each!r} is not a history", hint="give 'log' or 'newest' once, or SHARD=VERSION"
            )
    return Choice(of_all, versions)


def _look(location: "Location") -> "Recovered":
    from holdfast.collections.recovery import look_at_recovered

    return look_at_recovered(_client(location, "read"))


def _mend(location: "Location") -> None:
    from holdfast.collections.recovery import look_at_recovered, mend

    # The client is not closed: the caller closes the stores.
    client = _client(location, "write")
    for each in look_at_recovered(client).collections:
        mend(client, each)


def _client(location: "Location", mode: Any) -> "PersistClient":
    from holdfast.persist import PersistClient, PersistConfig

    return PersistClient(location, mode=mode, config=PersistConfig(maintenance="off"))


def _show(plan: "RecoveryPlan", found: "Recovered", absent: str, *, done: bool, restored: bool) -> None:
    if absent:
        _say(f"treated as empty: {absent}")
    if plan.lost:
        _say(f"the log breaks off: {plan.lost}")
    columns = ["SHARD", "OF", "LOG ENDS", "COMES BACK AT", "UPPER", "LEFTOVER BLOBS", "NOTE"]
    rows = [_row(shard, found, plan, restored=restored) for shard in plan.shards]
    if rows:
        click.echo(render(columns, rows), nl=False)
    divided = [shard for shard in plan.shards if shard.histories]
    for shard in divided[:_MOST_SHOWN]:
        of = f" ({found.shards[shard.shard_id]})" if shard.shard_id in found.shards else ""
        for each in shard.histories:
            _say(
                f"{shard.shard_id}{of}: the {each.source}'s history ends with version {each.seqno}, upper"
                f" {shown_moment(each.upper)}, written on {moment(each.wall_ms)} by {each.hostname}"
                f"{'' if each.whole else ', and some of its blobs are gone'}"
            )
    if len(divided) > _MOST_SHOWN:
        left = count(len(divided) - _MOST_SHOWN, "more shard")
        click.echo(f"and {left} with two histories: --json shows all", err=True)
    for collection in found.collections:
        _show_collection(collection, plan, done=done, restored=restored)
    if found.problem:
        _say(f"lost or unknown: {found.problem}")


def _show_collection(
    each: "RecoveredCollection", plan: "RecoveryPlan", *, done: bool, restored: bool
) -> None:
    if each.problem:
        verb = "can't be used" if done else "would not be usable"
        _say(f"collection {each.name}: {verb}: {each.problem}")
        return
    came = "came back" if done else "comes back"
    text = f"collection {each.name}: {came} complete up to {shown_moment(each.complete_to)}"
    is_torn = each.complete_to < each.upper
    if is_torn:
        text += f", and without some rows from then up to {shown_moment(each.upper)}"
    shards = [shard for shard in plan.shards if shard.shard_id in each.shards]
    lost = [f"{_lost(shard)} of {shard.shard_id}" for shard in shards if _lost(shard)]
    if lost:
        more = f" and of {count(len(lost) - 1, 'more shard')}" if len(lost) > 1 else ""
        text += f"; what {lost[0]}{more} wrote later is lost"
    elif restored or not all(shard.healthy for shard in shards):
        text += "; if anything was written later, it is lost"
    elif plan.paired and not is_torn:
        text += "; nothing of it is lost"
    _say(text)


def _lost(shard: "ShardPlan") -> str:
    """The versions of a shard that certainly are lost, as text; "" if nothing shows that any is."""
    from holdfast.persist.ids import EPOCH_BITS

    if shard.seqno is None:
        return ""
    if shard.histories:
        taken = next(each for each in shard.histories if each.seqno == shard.seqno)
        if taken.source == "log" and shard.seqno < shard.head:
            return f"the other history, with versions {shard.seqno + 1} to {shard.head} of the log,"
        return "the other history"
    if shard.seen <= shard.seqno:
        return ""
    if shard.seen == shard.seqno + 1:
        return f"version {shard.seen}"
    same = shard.seen >> EPOCH_BITS == shard.seqno >> EPOCH_BITS
    return f"versions {shard.seqno + 1} to {shard.seen}" if same else f"versions up to {shard.seen}"


def _is_whole(shard: "ShardPlan", plan: "RecoveryPlan", *, restored: bool) -> bool:
    """Whether certainly nothing of a shard is lost."""
    return shard.healthy and plan.paired and not restored


def _say(text: str) -> None:
    """Write a line that may contain texts of others to stderr."""
    click.echo(one_line(text), err=True)


def _conclude(
    plan: "RecoveryPlan", arguments: str, options: list[str], *, done: bool, restored: bool, torn: bool
) -> None:
    """Print what is lost, and what to do next."""
    gone = sum(shard.seqno is None and not shard.undecided for shard in plan.shards)
    undecided = sum(shard.undecided for shard in plan.shards)
    verb = "recovered" if done else "can recover"
    back = len(plan.shards) - gone - undecided
    if plan.shards:
        click.echo(f"{verb} {back:,} of {count(len(plan.shards), 'shard')}", err=True)
    else:
        click.echo("nothing was found: no shard has a log or a blob; check the URLs", err=True)
    if undecided:
        click.echo(
            f"{count(undecided, 'shard')} with two histories: clients wrote to an older copy;"
            " choose with --take log, --take newest or --take SHARD=VERSION, the other history is lost;"
            " to keep what the logs have now and let clients go on, see --accept",
            err=True,
        )
    if gone:
        verb = "lost" if done else "would be lost"
        click.echo(
            f"{count(gone, 'shard')} {verb}: only a newer copy of the consensus store has more", err=True
        )
    _say_what_is_lost(plan, done=done, restored=restored, torn=torn)
    # Blobs of a shard that does not come back are not swept: they may be all that is left.
    if any(shard.unnamed for shard in plan.shards if shard.seqno is not None):
        click.echo(
            "leftover blobs are those of lost appends, and of appends that never ended; to find them after a"
            f" day, run: holdfast persist sweep {arguments}",
            err=True,
        )
    if done and not plan.shards:
        return
    if done:
        click.echo(f"next: before you start the clients, run: holdfast persist verify {arguments}", err=True)
        return
    which = ["--take WHICH"] if undecided else []
    command = " ".join(["holdfast persist recover", arguments, *options, *which, "--yes"])
    how = "choose a history for WHICH, stop" if undecided else "stop"
    if not plan.complete or restored:
        how = f"if you have a newer copy of the consensus store, put it in place first; {how}"
    click.echo("'holdfast persist recover --help' explains the columns", err=True)
    click.echo(f"nothing was written; next: {how} every other client, and run: {command}", err=True)


def _say_what_is_lost(plan: "RecoveryPlan", *, done: bool, restored: bool, torn: bool) -> None:
    known = sum(bool(_lost(shard)) for shard in plan.shards)
    if known:
        verb = "are" if done else "would be"
        click.echo(f"versions of {count(known, 'shard')} {verb} lost: see NOTE", err=True)
    if plan.complete and not restored:
        if torn:
            click.echo("every log is whole, but some rows were lost earlier: see the collections", err=True)
        elif plan.paired:
            click.echo("nothing is lost: every log is whole", err=True)
        else:
            click.echo(
                "every log is whole: nothing is lost, except what the recovery that was interrupted showed",
                err=True,
            )
        return
    unknown = [
        shard
        for shard in plan.shards
        if not _lost(shard) and not shard.undecided and not _is_whole(shard, plan, restored=restored)
    ]
    if unknown or not plan.shards:
        what = "anything else" if known else "anything"
        click.echo(
            f"nobody knows whether {what} is lost: only a newer copy of the consensus store could show it; a"
            " shard that had neither a log nor a blob is not listed",
            err=True,
        )


def _row(shard: "ShardPlan", found: "Recovered", plan: "RecoveryPlan", *, restored: bool) -> list[str]:
    left, head = f"{shard.unnamed:,}", str(shard.head or "-")
    what = found.shards.get(shard.shard_id, "-")
    if shard.seqno is None:
        return [shard.shard_id, what, head, "?" if shard.undecided else "never", "-", left, shard.problem]
    lost = _lost(shard)
    if shard.histories:
        note = f"{lost} is lost"
    elif shard.beyond:
        note = f"versions up to {shard.beyond} follow a gap and are lost"
    elif lost:
        note = f"{lost} {'is' if lost.startswith('version ') else 'are'} lost"
    elif _is_whole(shard, plan, restored=restored):
        note = "nothing is lost"
    elif shard.healthy and not restored:
        note = "its log is whole"
    else:
        note = "no later version is known"
    upper = shown_moment(shard.upper or 0)
    return [shard.shard_id, what, head, f"version {shard.seqno}", upper, left, note]
