"""x: reads -1 as task."""
