"""Runs worlds on a mutant, in a separate process: `python -m sim.mutated COPY WORLDS hunt SEEDS [LIKELY]`."""

import json
import logging
import sys

import sim.reference  # noqa: F401 - the audit keeps the code that is right
from sim.kinds import world


def use(copy: str) -> None:
    """Import `holdfast` from the copy from now on."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "holdfast"]:
        del sys.modules[name]
    sys.path.insert(0, copy)


def smoke() -> None:
    """A mutant is a bug that a look does not find: what everybody tries first goes well with it."""
    from holdfast.persist import PersistClient, Schema

    with PersistClient.open("memory://smoke") as client:
        shard = client.new_shard_id()
        writer = client.writer(shard, Schema.of({"k": "int64"}, {"v": "string"}), purpose="smoke")
        writer.compare_and_append([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}], 0, 1)
        with client.reader(shard, purpose="smoke") as reader:
            rows = reader.snapshot(0).to_table().select(["k", "v", "_diff"]).to_pylist()
    wanted = [{"k": 1, "v": "a", "_diff": 1}, {"k": 2, "v": "b", "_diff": 1}]
    assert sorted(rows, key=lambda row: row["k"]) == wanted, rows


def first_failure(kind: str, seeds: int, likely: int = 0) -> tuple[int | None, str]:
    """The first seed below `seeds`, after the `likely` one, whose world of this kind fails, and how.

    A patch that uses a name that doesn't exist is a mistake in the patch, and is raised.
    """
    for seed in dict.fromkeys((likely, *range(seeds))):
        try:
            world(kind, seed).run()
        except (NameError, ImportError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is what we look for
            return seed, f"{type(error).__name__}: {error}"
    return None, ""


def main() -> int:
    copy, kind, command, number = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    use(copy)
    import holdfast.persist

    assert holdfast.persist.__file__.startswith(copy), holdfast.persist.__file__
    from sim.replay import replay

    if command == "replay":
        return replay(number, kind)
    smoke()
    seed, error = first_failure(kind, number, *map(int, sys.argv[5:]))
    print(json.dumps({"seed": seed, "error": error}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
