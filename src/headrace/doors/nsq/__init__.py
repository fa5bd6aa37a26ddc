"""The NSQ door: what nsqd speaks, over TCP and HTTP."""
