"""Runs a command that dies with its parent: `python _tether.py <signal> <parent pid> <command>...`.

It is a program and not a `preexec_fn`, because the test bed forks from processes with many threads. Only
Linux can tie a process to its parent. Elsewhere the command runs without the tie.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def tie_to_parent(death_signal: int) -> None:
    """Have the kernel send `death_signal` to this process when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)


if __name__ == "__main__":
    tie_to_parent(int(sys.argv[1]))
    # The parent may have ended before the tie was made; then nobody would ever stop the command.
    if os.getppid() != int(sys.argv[2]):
        sys.exit(1)
    os.execvp(sys.argv[3], sys.argv[3:])
