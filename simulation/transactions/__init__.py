"""The whole broker, with clients that write in transactions."""
