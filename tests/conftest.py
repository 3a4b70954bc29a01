"""Fixtures and markers for all tests come from the test bed."""

pytest_plugins = ["testbed.pytest_plugin"]
