"""How long the campaigns of `make long` are. With what they say themselves all of them end within two hours on two
cores; `LONGER=5 make long` makes each five times as long."""

from __future__ import annotations

import os

LONGER = int(os.environ.get("LONGER", "1"))
