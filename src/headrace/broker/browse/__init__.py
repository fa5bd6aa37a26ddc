"""Looking at the messages of a topic, for people: in order of time over its partitions, filtered, with fields masked.

walk.py        records of one partition, forwards and backwards
browse.py      pages over several partitions, and what comes next
conditions.py  what a message must have
expression.py  the language of `where`
view.py        a message as conditions and readers see it
mask.py        fields that are hidden
"""

from headrace.broker.browse.browse import Browsed, Browser, Place, Range
from headrace.broker.browse.conditions import Conditions
from headrace.broker.browse.expression import parse
from headrace.broker.browse.mask import Mask, check_mask, mask_of
from headrace.broker.browse.view import JSON_MAX, View

__all__ = [
    "JSON_MAX",
    "Browsed",
    "Browser",
    "Conditions",
    "Mask",
    "Place",
    "Range",
    "View",
    "check_mask",
    "mask_of",
    "parse",
]
