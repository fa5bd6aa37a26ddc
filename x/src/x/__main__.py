"""`python -m x`: run until SIGINT or SIGTERM."""

from __future__ import annotations

import logging

from x.app import app

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    app.run()
