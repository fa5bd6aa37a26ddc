"""Figures of a broker for many watchers at once: looked at together, given out as what has changed.

changes.py   rows in the order in which they changed
rows.py      all rows, and those that may mean trouble
columns.py   what a row of each kind has
figures.py   the look at everything, at most one at a time
topics.py    queues.py, groups.py: its parts
pace.py      how much of it is done in a turn of the loop
unread.py    since when a group has not read a record
overview.py  totals, rates, and what is wrong
"""

from headrace.broker.figures.changes import Changed
from headrace.broker.figures.columns import KINDS
from headrace.broker.figures.figures import Figures
from headrace.broker.figures.overview import Overview, Problem

__all__ = ["KINDS", "Changed", "Figures", "Overview", "Problem"]
