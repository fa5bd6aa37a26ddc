"""Search: messages by what they have (key, id, tag, header) in a range of time, whichever door asks.

`fields.py` is what a topic may have an index of, `query.py` what is asked, `search.py` how it is found.
"""
