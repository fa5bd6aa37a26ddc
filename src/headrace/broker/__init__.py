"""What a message queue means, whichever door asked: topics, groups, producer ids, metrics."""
