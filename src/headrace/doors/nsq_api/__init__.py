"""What nsqd and nsqlookupd have in common: how NSQ names things, and the manners of its HTTP APIs."""
