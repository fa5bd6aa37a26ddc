"""What every test runs under."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.device import Device

# The normal run tries the same examples each time, a third of the usual number, so that it fails for what was changed
# and for nothing else: not for a machine that does other things, either. New examples, and all of them, are looked for
# by `make long`, which names Hypothesis' own profile.
settings.register_profile(
    "same", derandomize=True, max_examples=33, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")

# A shell that runs the tests in the background lets them ignore Ctrl-C, and whatever they start would ignore it too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def device() -> Device:
    """A device whose flushes the test holds or fails; give it to `open_door` or `brokers.running` as the data."""
    from tests.device import Device

    return Device()
