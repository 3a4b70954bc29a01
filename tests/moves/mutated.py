"""Runs a part of the proof on a mutant, in a separate process: `python -m moves.mutated COPY KIND PART`."""

import logging
import sys

from sim.mutated import use


def main() -> int:
    copy, kind, part = sys.argv[1:]
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)
    use(copy)
    import holdfast.catalog

    assert holdfast.catalog.__file__.startswith(copy), holdfast.catalog.__file__
    if kind == "test":
        return _test(part)
    smoke()
    try:
        _prove(kind, part)
    except AssertionError as error:
        print("FOUND", " ".join(str(error).split())[:1000])
        return 1
    return 0


def smoke() -> None:
    """A mutant is a bug that a look does not find: a move and a write after it go well."""
    from holdfast.catalog.move.truth import Backend, Strategy
    from moves.actors import Book, migrate, write
    from moves.world import World

    # Without the witness: here only what anybody sees is looked at.
    world, book = World(strategy=Strategy.ONE_TOMBSTONE, is_watched=False), Book()
    assert write(world.process(), book, "a", backend=Backend.STASH)
    assert migrate(world.process(), Book(), Backend.PERSIST), "smoke"
    assert write(world.process(), book, "x"), f"smoke: {book.told}"


def _prove(kind: str, part: str) -> None:
    from moves import campaign
    from moves.crashes import Visited

    if kind == "crashes":
        acts = [act for act in campaign.all_acts() if part in str(act)]
        assert acts, f"no act has {part!r} in its name"
        for act in acts:
            Visited().visit(act)
    else:
        meetings = [meeting for meeting in campaign.meetings() if part in str(meeting)]
        if not meetings:
            raise SystemExit(f"no meeting has {part!r} in its name")
        for meeting in meetings:
            meeting.explore()


def _test(part: str) -> int:
    import pytest

    code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--rootdir=..", f"../{part}"])
    if code == pytest.ExitCode.TESTS_FAILED:
        print(f"\nFOUND by {part}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
