"""A pytest plugin: a real broker for users' tests."""
