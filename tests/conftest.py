"""Property tests draw the same examples on every run, and none is judged by the clock."""

from hypothesis import settings

settings.register_profile("course", deadline=None, derandomize=True)
settings.load_profile("course")
