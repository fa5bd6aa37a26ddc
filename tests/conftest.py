"""What every test runs under."""

from hypothesis import settings

# The normal run tries the same examples each time, so that it fails for what was changed and for nothing else. New
# examples are looked for by `make long`, which names Hypothesis' own profile.
settings.register_profile("same", derandomize=True)
settings.load_profile("same")
