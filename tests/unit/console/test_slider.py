"""The time slider as SVG."""

from xml.etree import ElementTree as ET

from holdfast.console.drawing.slider import WIDTH, position, slider_svg
from holdfast.console.facts.rows import SliderTicks, Tick

TICKS = SliderTicks(
    100,
    200,
    (
        Tick(100, 5, 5, 0, is_exact=True),
        Tick(150, 1_000_001, 1_000_000, 1, is_exact=True),
        Tick(200, 3),
    ),
)
SVG = "{http://www.w3.org/2000/svg}"


def lines(kind: str, ticks: SliderTicks = TICKS) -> list[dict[str, str]]:
    tree = ET.fromstring(slider_svg(ticks, [150], "three times"))
    return [
        each.attrib for each in tree.iter() if each.tag.endswith("line") and kind in each.get("class", "")
    ]


def test_rows_added_go_up_and_rows_removed_go_down() -> None:
    assert [float(each["x1"]) for each in lines("added")] == [0, 500]
    assert all(float(each["y2"]) < float(each["y1"]) for each in lines("added"))
    (removed,) = lines("removed")
    assert float(removed["y2"]) > float(removed["y1"])
    (stored,) = lines("stored")
    assert float(stored["x1"]) == WIDTH


def test_one_row_is_seen_beside_a_million() -> None:
    (removed,) = lines("removed")
    assert float(removed["y2"]) - float(removed["y1"]) >= 3
    assert all(
        0 <= float(each[end]) <= 52
        for kind in ("added", "removed", "stored")
        for each in lines(kind)
        for end in ("y1", "y2")
    )


def test_a_chosen_time_outside_of_the_picture_has_no_mark() -> None:
    (chosen,) = lines("chosen")
    assert float(chosen["x1"]) == 500
    assert "chosen" not in slider_svg(TICKS, [99, 201], "x")


def test_one_time_alone_has_a_place() -> None:
    one = SliderTicks(7, 7, (Tick(7, 1),))
    assert position(7, one) == WIDTH
    assert lines("stored", one)


def test_a_comparison_goes_back_across_the_last_change() -> None:
    # The collection was complete to later times without a change.
    assert [TICKS.changed_since(time) for time in (200, 260)] == [150, 150]
    assert TICKS.changed_since(199) == 100
    assert TICKS.changed_since(99) is None
    assert SliderTicks(100, 300, (Tick(150, 1),)).changed_since(300) == 100
