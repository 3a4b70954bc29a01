"""Calls a function for some arguments in threads, a few calls ahead of the caller."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar, TypeVarTuple

READ_AHEAD: Final = 2
"""How many calls run or have run before the caller takes their result, and how many threads run them."""

_Given = TypeVarTuple("_Given")
_Result = TypeVar("_Result")


def in_threads(
    function: Callable[[*_Given], _Result], arguments: Iterable[tuple[*_Given]]
) -> Generator[_Result, None, None]:
    """Yield the result of the function for each of the arguments, in their order. Raises its errors.

    When the process ends, no thread can be started any more. Then the caller's thread calls the function.
    """
    with ThreadPoolExecutor(READ_AHEAD, "holdfast-read") as threads:
        waiting: deque[Callable[[], _Result]] = deque()
        try:
            for given in arguments:
                try:
                    waiting.append(threads.submit(function, *given).result)
                except RuntimeError:
                    waiting.append(partial(function, *given))
                if len(waiting) > READ_AHEAD:
                    yield waiting.popleft()()
            while waiting:
                yield waiting.popleft()()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
