"""Turns off Hypothesis deadlines, because a busy machine is not a failure."""

from hypothesis import settings

settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")
