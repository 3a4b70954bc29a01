"""One world again, with all that happened in it told."""

from sim.story import settings
from sim.world import World


def replay(seed: int) -> int:
    """Run the world of a seed and print its trace; 1 where it failed."""
    world = World(seed)
    world.scheduler.telling = True
    failure = ""
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - any failure is an answer
        failure = f"{type(error).__name__}: {error}"
    print("\n".join(world.scheduler.trace))
    print("\nconfiguration", *settings(world.config), sep="\n")
    print("weather", *settings(world.weather), sep="\n")
    print(f"stores\n  {'the file blob on a disk' if world.disk else 'memory'}")
    print(f"\nseed {seed} failed: {failure}" if failure else f"\nnothing wrong with seed {seed}")
    return int(bool(failure))
