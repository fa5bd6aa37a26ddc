"""nan: reads x as task."""
