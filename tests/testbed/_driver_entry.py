"""The program that the stand-in submits. It waits for its turn, and then becomes the application.

Usage: `_driver_entry.py <gate> file:<path>|module:<name> <argument>...`. The program creates `<gate>.started`
when Python runs, so that a failed driver differs from a failed submission. It starts the application when
`<gate>.go` exists.
"""

import runpy
import signal
import sys
import time
from pathlib import Path

_POLL_SECONDS = 0.02


def main() -> None:
    here = Path(__file__).parent
    # The application must not see the modules of the test bed, only its own folder.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here.resolve()]
    gate, target = sys.argv[1:3]
    Path(f"{gate}.started").touch()
    while not Path(f"{gate}.go").exists():
        time.sleep(_POLL_SECONDS)
    kind, _, name = target.partition(":")
    sys.argv[:] = [name, *sys.argv[3:]]
    if kind == "module":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(name).parent))
        runpy.run_path(name, run_name="__main__")


if __name__ == "__main__":
    # Spark's JVM started us from the thread that waits for us: with it we end.
    from _tether import tie_to_parent  # type: ignore[import-not-found]

    tie_to_parent(signal.SIGKILL)
    main()
