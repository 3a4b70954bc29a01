"""A denied request is sent again after a pause."""

from holdfast_operator.api.names import Kind
from holdfast_operator.engine.clock import SystemClock
from holdfast_operator.engine.denials import PAUSE_SECONDS, Denials
from holdfast_operator.engine.kube import ObjectKey

ONE, OTHER = (ObjectKey(Kind.STORAGE_COLLECTION, "ns", name) for name in ("one", "other"))


class Set(SystemClock):
    """Shows what it is set to."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_denied_request_waits_and_those_of_other_objects_do_not() -> None:
    clock = Set()
    denials = Denials(clock)
    denials.add(ONE, "full")
    assert (denials.why(ONE), denials.why(OTHER)) == ("full", None)
    clock.now = PAUSE_SECONDS - 1
    assert denials.why(ONE) == "full"
    denials.add(OTHER, "no")
    clock.now = PAUSE_SECONDS
    assert (denials.why(ONE), denials.why(OTHER)) == (None, "no")


def test_numbers_that_change_do_not_change_what_is_shown_at_each_request() -> None:
    clock = Set()
    denials = Denials(clock)
    shown = []
    for number in range(30):
        denials.add(ONE, f"exceeded quota: team, used: cpu={number}500m; dial tcp 10.0.0.1:{number}")
        shown.append(denials.why(ONE))
        clock.now += PAUSE_SECONDS + 5
    # Within 17.5 minutes, they are shown anew once.
    assert len(set(shown)) == 2
    denials.add(ONE, "exceeded quota: other, used: cpu=1")
    assert "other" in (denials.why(ONE) or "")
    denials.add(OTHER, "no")
    assert "other" in (denials.why(ONE) or "")
