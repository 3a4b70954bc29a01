import pytest
from hypothesis import settings

from unit.persist.open_stores import Stores

settings.register_profile("persist", deadline=None)
settings.load_profile("persist")


@pytest.fixture
def stores() -> Stores:
    return Stores()
