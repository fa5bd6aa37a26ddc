"""What a broker bears of those who watch it, and what a browser bears of watching.

__main__.py  10,000 topics, unwatched and watched by many, at rest and under load
fill.py      those topics, queues and groups, over the broker's doors
probe.py     load on the broker, and how long a message takes from its producer to its consumer
watchers.py  50 pages: sockets as a browser's, and real ones of Chromium
steps.py     the longest steps of the broker's loop, request by request
"""
