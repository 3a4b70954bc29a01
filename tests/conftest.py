"""Loads the plugins of all tests: the test bed, and the report of the simulation."""

from hypothesis import settings

pytest_plugins = ["testbed.pytest_plugin", "sim.report"]

# How long an example takes tells how busy the machine is.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
