"""The fixtures of the tests of collections, for the tests of spark."""

from unit.collections.conftest import client, controller, stores

__all__ = ["client", "controller", "stores"]
