"""Copying a group's log to a node that is new, or too far behind for the journal: over a connection of its own."""
