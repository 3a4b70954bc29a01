"""Run the world of one seed again and tell all that happened: `cd tests && python -m sim SEED`."""

import sys

from sim.world import World


def main() -> int:
    if len(sys.argv) != 2 or not sys.argv[1].isdigit():
        print(__doc__, file=sys.stderr)
        return 2
    world = World(int(sys.argv[1]))
    try:
        world.run()
    except Exception as error:  # noqa: BLE001 - any failure is an answer
        print("\n".join(world.scheduler.trace))
        print(f"{world.config}\n{world.weather}\n{type(error).__name__}: {error}")
        return 1
    print("\n".join(world.scheduler.trace))
    print(f"{world.config}\n{world.weather}\nnothing wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
