"""Copying a replica's partitions as files: what the leader has at one position of the journal, and taking it over."""
