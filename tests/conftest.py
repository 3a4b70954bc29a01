"""Fixtures and markers for all tests come from the test bed, tables at the end from the simulation."""

pytest_plugins = ["testbed.pytest_plugin", "sim.report"]
