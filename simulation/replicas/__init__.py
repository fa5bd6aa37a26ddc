"""Replicas of a log: a group of nodes with partitions on their journal, while everything around them fails."""
