"""`make cluster-demo`: a group of three nodes, what faults do to it, and what clients see of them."""
