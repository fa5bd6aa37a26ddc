"""What the HTTP door serves: health, metrics, a first page, and publishing and management in JSON."""
