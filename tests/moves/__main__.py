"""The proof of moving a catalog, from the command line in `tests/`.

python -m moves crashes [PART] [--all]        break off the acts with PART in their names (those of make test)
python -m moves meet [PART] [--all]           explore the meetings with PART in their names (the same)
python -m moves decisions [PART]              break decisions with PART in their names off, and explore theirs
python -m moves mutants [NAME...] [--refresh] hunt the mutants, where they say
python -m moves restored [PART] [--all]       pairs with an older copy in the stories with PART in their names
python -m moves soak                          all acts, meetings, decisions, a large catalog: some minutes
"""

import argparse
import subprocess
import sys
import tempfile
import time

from moves import campaign
from moves.crashes import Visited
from moves.decisions import MEETINGS, Decisions, choices
from moves.decisions import meet as meet_over
from moves.explorer import Explored
from moves.restored import Found, stories
from moves.restored_modes import SAMPLE as VISITED
from moves.restored_modes import visited
from moves.restored_readers import SAMPLE as FOLLOWED
from moves.restored_readers import followed


def crashes(part: str, *, everything: bool) -> int:
    visited, started = Visited(), time.process_time()
    acts = [act for act in campaign.all_acts() if part in str(act) and (everything or campaign.is_quick(act))]
    for act in acts:
        visited.visit(act)
        print(f"{time.process_time() - started:6.1f} s  {act}", flush=True)
    visited.check_all()
    print("\n".join(campaign.told(visited)), flush=True)
    return 0


def meet(part: str, *, everything: bool) -> int:
    total = Explored()
    for meeting in campaign.meetings():
        if part in str(meeting) and (everything or campaign.is_quick_meeting(meeting)):
            started = time.process_time()
            found = meeting.explore()
            total += found
            seconds = time.process_time() - started
            print(
                f"{seconds:6.1f} s {found.schedules:6,} {found.runs:6,} {found.twice:6,}  {meeting}",
                flush=True,
            )
    print(
        f"{total.schedules:,} schedules, {total.runs:,} run, {total.twice:,} with two preemptions", flush=True
    )
    return 0


def decided(part: str) -> int:
    visited = Decisions()
    for choice in choices():
        if part in str(choice):
            visited.visit(choice)
            print(choice, flush=True)
    visited.check_all()
    print("\n".join(campaign.told_of_decisions(visited)), flush=True)
    for name in MEETINGS:
        if part in name:
            print(name, meet_over(name), flush=True)
    return 0


def restored(part: str, *, everything: bool) -> int:
    """Readers, subscribers, shadows and emergencies: a sample of the pairs, or all."""
    total = Found()
    for writers in ("plain", "shadow", "emergency"):
        for story in stories(writers):
            if part not in str(story):
                continue
            started, found = time.process_time(), Found()
            if writers == "plain":
                followed(story, found, every=1 if everything else FOLLOWED)
            visited(story, found, every=1 if everything else VISITED)
            total.add(found)
            print(f"{time.process_time() - started:6.1f} s  {story}: {dict(found.counts)}", flush=True)
    print("\n".join([*total.wrong, *total.refused, *total.told()]), flush=True)
    return int(bool(total.wrong or total.refused))


def large() -> int:
    with tempfile.TemporaryDirectory(prefix="holdfast-large-") as folder:
        command = [sys.executable, "-m", "moves.large", folder, "100000", "300000"]
        return subprocess.run(command, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m moves", description=__doc__)
    parser.add_argument("what", choices=("crashes", "meet", "decisions", "mutants", "restored", "soak"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true", dest="everything")
    parser.add_argument("--refresh", action="store_true")
    options = parser.parse_args()
    part = " ".join(options.names)
    match options.what:
        case "crashes":
            return crashes(part, everything=options.everything)
        case "meet":
            return meet(part, everything=options.everything)
        case "decisions":
            return decided(part)
        case "restored":
            return restored(part, everything=options.everything)
        case "mutants":
            from moves.mutation import hunt_all

            return hunt_all(options.names, refreshing=options.refresh)
        case _:
            return crashes(part, everything=True) or meet(part, everything=True) or decided(part) or large()


if __name__ == "__main__":
    sys.exit(main())
