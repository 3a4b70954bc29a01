"""A location with two collections, and a console over it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.console.context import Console
from holdfast.console.places import ShownPlace, ShownPlaces
from unit.console.browsing import Browser, access, served

ORDERS = [
    {"id": 1, "customer": "ann", "amount": 9.5},
    {"id": 2, "customer": "<script>alert(1)</script>", "amount": 3.0},
]


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a location that no test changes."""
    folder = tmp_path_factory.mktemp("console") / "shop"
    columns = {"id": "int64", "customer": "string?", "amount": "float64?"}
    with holdfast.table(folder, "orders", columns=columns, key=["id"]) as orders:
        orders.upsert(ORDERS)
        orders.delete([1])
    with holdfast.table(folder, "<b>bold</b>/'\"", columns={"id": "int64"}, key=["id"]) as bold:
        bold.upsert([{"id": 7}])
    return folder


@pytest.fixture(scope="session")
def place(shop: Path) -> Iterator[ShownPlace]:
    (found,) = ShownPlaces.named([str(shop)])
    yield found
    found.close()


@pytest.fixture(scope="session")
def browser(place: ShownPlace) -> Iterator[Browser]:
    with served(Console(ShownPlaces({place.name: place}), access())) as opened:
        yield opened
