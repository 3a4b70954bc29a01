"""Property tests here run without a deadline: a machine under load is no failure."""

from hypothesis import settings

settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")
