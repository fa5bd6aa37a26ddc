"""A group of nodes: its metadata in etcd, and each node's identity on its own disk.

Nothing here is imported where a broker runs alone. No consensus is home-made: etcd orders the changes of a group's
record, and every change is a compare-and-swap.
"""
