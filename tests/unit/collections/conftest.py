"""The stores of a location in memory, and a client that opens it, for each test."""

import pytest

from holdfast.collections import StorageController
from holdfast.persist import PersistClient
from unit.collections.stores import Stores


@pytest.fixture
def stores() -> Stores:
    return Stores()


@pytest.fixture
def client(stores: Stores) -> PersistClient:
    return stores.open()


@pytest.fixture
def controller(client: PersistClient) -> StorageController:
    """One that has no collections yet."""
    return StorageController(client)
