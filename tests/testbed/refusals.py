"""Records which tiers the machine cannot have in this run, and words the lines about it at the end.

The processes of a run with `-n` share a file with the refusals. If a tier cannot be built, one process of the
run tries to build it, and the others skip its tests at once.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from testbed.require import Tier

OVER_BUDGET: Final = "the time of --budget is over"
"""The reason why a test did not start in time."""
_SKIPPED: Final = re.compile(rf"Skipped: ({'|'.join(Tier)}): (.*)", re.DOTALL)
_LONGEST: Final = 300


class Refusals:
    """The reason why the machine cannot have a tier, for each such tier.

    `shared` is the file of a run with several processes. Without it, only this process knows the reasons.
    """

    def __init__(self, shared: Path | None = None) -> None:
        self._shared = shared
        self._reasons: dict[str, str] = {}

    def get(self, tier: Tier) -> str | None:
        """Return the reason, or None if the tier is not refused."""
        if tier not in self._reasons and self._shared is not None and self._shared.exists():
            self._reasons = json.loads(self._shared.read_text())
        return self._reasons.get(tier)

    def add(self, tier: Tier, reason: str) -> None:
        """Record a refusal. Only one process of the run may be in here at a time."""
        self._reasons[tier] = reason
        if self._shared is not None:
            self._shared.write_text(json.dumps(self._reasons))


def not_run(skipped: Iterable[str]) -> Iterator[str]:
    """Yield one line for each reason in the messages of skipped tests: tier, number of tests, reason."""
    messages = Counter(skipped)
    for message, tests in sorted(messages.items()):
        found = _SKIPPED.fullmatch(message)
        if found is not None:
            reason = " ".join(found[2].split())
            shown = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]} ..."
            yield f"not run: tier {found[1]}, {_count(tests)}: {shown}"
    late = messages[f"Skipped: {OVER_BUDGET}"]
    if late:
        yield f"not run: {_count(late)}: {OVER_BUDGET}; run `make test`"


def _count(tests: int) -> str:
    return f"{tests} test{'' if tests == 1 else 's'}"
