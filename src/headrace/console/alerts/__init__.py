"""Alerts: rules over figures, what is firing, and who is told."""
