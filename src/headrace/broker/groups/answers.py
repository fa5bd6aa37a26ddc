"""Answers for a whole group, some in a turn of the loop.

A generation of ten thousand members begins with as many answers, each of which wakes a connection that writes it: about
a second's work. All other connections would wait for the last of them. So the rest has its turn after theirs.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from headrace.broker.groups.deadline import Loop

Answer = TypeVar("Answer")

ANSWERS_A_TURN = 200


def answer_in_turns(loop: Loop, answers: Iterator[tuple[Future[Answer], Answer]]) -> None:
    """Give each future its answer; the first of them now."""
    answered = 0
    for future, answer in islice(answers, ANSWERS_A_TURN):
        answered += 1
        # The waiting request may be gone.
        if not future.done():
            future.set_result(answer)
    if answered == ANSWERS_A_TURN:
        loop.call_at(loop.time(), answer_in_turns, loop, answers)
