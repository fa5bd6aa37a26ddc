"""What every test runs under."""

import signal

from hypothesis import settings

# The normal run tries the same examples each time, so that it fails for what was changed and for nothing else. New
# examples are looked for by `make long`, which names Hypothesis' own profile.
settings.register_profile("same", derandomize=True)
settings.load_profile("same")

# A shell that runs the tests in the background lets them ignore Ctrl-C, and whatever they start would ignore it too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
