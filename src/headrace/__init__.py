"""Headrace: one durable log with several front doors."""

__version__ = "0.1.0"
