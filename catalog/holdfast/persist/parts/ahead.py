"""Calls a function for some arguments in threads, a few calls ahead of the caller."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar, TypeVarTuple

READ_AHEAD: Final = 2
"""How many calls run or have run before the caller takes their result, and how many threads run them."""

_Given = TypeVarTuple("_Given")
_Result = TypeVar("_Result")


def in_threads(
    function: Callable[[*_Given], _Result], arguments: Iterable[tuple[*_Given]]
) -> Generator[_Result, None, None]:
    """Yield the result of the function for each of the arguments, in their order. Raises its errors."""
    with ThreadPoolExecutor(READ_AHEAD, "holdfast-read") as threads:
        waiting: deque[Future[_Result]] = deque()
        try:
            for given in arguments:
                waiting.append(threads.submit(function, *given))
                if len(waiting) > READ_AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()
