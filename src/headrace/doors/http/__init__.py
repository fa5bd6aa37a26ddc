"""The HTTP door: health, metrics, and a page that says what this is."""
