"""The NSQ door: `nsqd/` and `lookupd/`, and what they share: how NSQ names things, the manners of its HTTP APIs."""
