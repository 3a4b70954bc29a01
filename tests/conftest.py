"""Fixtures and markers for all tests come from the test bed, tables at the end from the simulation."""

from hypothesis import settings

pytest_plugins = ["testbed.pytest_plugin", "sim.report"]

# How long an example takes tells how busy the machine is.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
