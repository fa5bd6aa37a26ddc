"""The NSQ door: nsqd's TCP protocol V2 over topics and queues.

`codec.py` is the protocol without I/O, `connection.py` feeds it, `listener.py` holds what connections share.
"""
