"""Runs one world again, and prints everything that happens in it."""

from sim.kinds import PERSIST
from sim.kinds import world as made


def replay(seed: int, kind: str = PERSIST) -> int:
    """Run the world of a seed and print its trace; 1 where it failed."""
    world = made(kind, seed)
    world.scheduler.telling = True
    failure = ""
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - any failure is an answer
        failure = f"{type(error).__name__}: {error}"
    print("\n".join(world.scheduler.trace))
    print("", *world.told(), sep="\n")
    print(f"\nseed {seed} failed: {failure}" if failure else f"\nnothing wrong with seed {seed}")
    return int(bool(failure))
