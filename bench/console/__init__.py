"""What a broker bears of those who watch it.

__main__.py  a broker with 10,000 topics under load, unwatched and watched
fill.py      those topics, queues and groups
steps.py     the longest steps of its loop, request by request
"""
