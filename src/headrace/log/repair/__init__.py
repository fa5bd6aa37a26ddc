"""Looking at a damaged data directory, and mending it: `headrace log verify` and `headrace log repair`."""
