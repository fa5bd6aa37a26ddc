"""The log alone."""
