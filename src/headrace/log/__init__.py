"""Bytes on disk: a durable log of record batches behind the narrow interface of `interface.py`."""
