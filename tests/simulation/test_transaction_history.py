"""The checker of histories of transactions, with histories made by hand: what is right passes, and each rule finds the
one thing that it is there for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.history import Violation
from simulation.transactions.history import Attempt, Found, Owner, Progress, TransactionHistory

A, B, IN = ("a", 0), ("b", 0), ("in", 0)


class Story:
    """A client that writes `<name>.1` to A at 0 and `<name>.2` to B at 0, having read 0 to 3 of IN."""

    def __init__(self) -> None:
        self.history = TransactionHistory()

    def owner(self, name: str = "first") -> Owner:
        owner = self.history.claim("id", name)
        self.history.on_claimed(owner)
        return owner

    def attempt(self, name: str = "t", owner: Owner | None = None, at: int = 0, group: str | None = None) -> Attempt:
        history = self.history
        attempt = history.begin(name, owner or self.owner())
        for number, place in enumerate((A, B), at * 2):
            written = history.send(attempt, place, f"{name}.{place[0]}", number)
            history.acknowledge(written, at)
        if group is not None:
            attempt.progress.append(Progress(group, IN, at * 3, at * 3 + 3))
        return attempt

    def commit(self, attempt: Attempt, answered: bool = True) -> Attempt:
        self.history.start_commit(attempt)
        if answered:
            self.history.commit(attempt)
        return attempt


def both(name: str = "t", at: int = 0) -> dict[tuple[str, int], list[tuple[int, str]]]:
    return {A: [(at, f"{name}.a")], B: [(at, f"{name}.b")]}


NOTHING: dict[tuple[str, int], list[tuple[int, str]]] = {A: [], B: []}


@pytest.fixture
def story() -> Story:
    return Story()


def test_what_was_committed_is_there(story: Story) -> None:
    attempt = story.commit(story.attempt(group="g"))
    story.history.read(A, 0, [(0, "t.a")], 2, 2)
    story.history.check(Found(both(), {A: (2, 2), B: (2, 2)}, {("g", IN): 3}))
    assert attempt.written[0].value == "t.a"


def test_what_was_aborted_is_not(story: Story) -> None:
    story.history.abort(story.attempt(group="g"))
    story.history.check(Found(NOTHING, {A: (2, 2)}, {("g", IN): -1}))


@pytest.mark.parametrize("there", [both(), NOTHING])
def test_what_was_not_answered_may_be_there_or_not(story: Story, there: dict[tuple[str, int], list[tuple[int, str]]]):
    story.commit(story.attempt(group="g"), answered=False)
    story.history.check(Found(there, {}, {("g", IN): 3 if there is not NOTHING else -1}))


def refused(check: Callable[[], object], words: str) -> None:
    with pytest.raises(Violation, match=words):
        check()


def test_a_committed_record_is_lost(story: Story) -> None:
    story.commit(story.attempt())
    refused(lambda: story.history.check(Found({A: [(0, "t.a")], B: []})), "t.b is lost")


def test_a_record_of_an_abort_is_read(story: Story) -> None:
    story.history.abort(story.attempt())
    refused(lambda: story.history.read(A, 0, [(0, "t.a")], 1, 1), "read as committed, but t is aborted")


def test_a_record_of_an_open_transaction_is_read_even_if_it_commits_later(story: Story) -> None:
    attempt = story.attempt()
    refused(lambda: story.history.read(A, 0, [(0, "t.a")], 1, 1), "t is open")
    story.commit(attempt)
    story.history.read(A, 0, [(0, "t.a")], 1, 1)


def test_a_transaction_whose_client_died_is_found_in_the_end(story: Story) -> None:
    story.attempt()
    refused(lambda: story.history.check(Found(both())), "t is open")


def test_half_of_a_transaction_is_there(story: Story) -> None:
    story.commit(story.attempt(), answered=False)
    refused(lambda: story.history.check(Found({A: [(0, "t.a")], B: []})), r"half of t is there, and t\.b is not")


def test_a_record_is_there_twice(story: Story) -> None:
    story.commit(story.attempt())
    refused(lambda: story.history.check(Found({A: [(0, "t.a"), (1, "t.a")], B: [(0, "t.b")]})), "duplicate")


def test_a_record_is_read_at_another_place_than_was_told(story: Story) -> None:
    story.commit(story.attempt())
    refused(lambda: story.history.read(A, 1, [(1, "t.a")], 2, 2), "is at 0 too: a duplicate")


def test_two_records_at_one_place(story: Story) -> None:
    owner = story.owner()
    story.attempt("t", owner)
    refused(lambda: story.attempt("u", owner), "where t.a is")


def test_the_order_of_a_client_is_broken(story: Story) -> None:
    history, owner = story.history, story.owner()
    attempt = history.begin("t", owner)
    history.send(attempt, A, "second", 2)
    history.send(attempt, A, "first", 1)
    story.commit(attempt)
    refused(lambda: history.check(Found({A: [(0, "second"), (1, "first")]})), "first at 1 stands behind second")


def test_what_a_reader_saw_has_disappeared(story: Story) -> None:
    story.commit(story.attempt(), answered=False)
    story.history.read(A, 0, [(0, "t.a")], 2, 2)
    refused(lambda: story.history.read(A, 0, [], 2, 2), "t.a at 0 has disappeared")
    refused(lambda: story.history.check(Found(NOTHING)), "t.a at 0 has disappeared")


def test_a_record_comes_behind_a_reader_that_has_passed(story: Story) -> None:
    story.commit(story.attempt())
    story.history.read(A, 0, [], 2, 2)
    refused(lambda: story.history.read(A, 0, [(0, "t.a")], 2, 2), "t.a at 0 came late")


def test_a_reader_comes_beyond_the_stable_offset(story: Story) -> None:
    story.commit(story.attempt())
    refused(lambda: story.history.read(A, 0, [(0, "t.a")], 1, 0), "beyond the stable offset 0")


def test_the_stable_offset_goes_back(story: Story) -> None:
    story.history.observe_stable(A, 5, 0)
    refused(lambda: story.history.observe_stable(A, 4, 5), "was 5, and is 4")


def test_something_that_nobody_sent(story: Story) -> None:
    refused(lambda: story.history.read(A, 0, [(0, "x")], 1, 1), "never sent")
    refused(lambda: story.history.read_all(A, [(0, "x")]), "never sent")


def test_an_acknowledged_record_is_not_where_it_was_acknowledged(story: Story) -> None:
    story.attempt()
    refused(lambda: story.history.read_all(A, [(3, "t.a")]), "is at 0 too")


def test_the_stable_offset_is_stuck(story: Story) -> None:
    story.commit(story.attempt())
    refused(lambda: story.history.check(Found(both(), {A: (1, 2)})), "stuck at 1")


def test_offsets_count_without_their_records(story: Story) -> None:
    story.commit(story.attempt(group="g"), answered=False)
    refused(lambda: story.history.check(Found(NOTHING, {}, {("g", IN): 3})), "no client committed what leads to 3")


def test_records_are_there_without_their_offsets(story: Story) -> None:
    story.commit(story.attempt(group="g"), answered=False)
    refused(lambda: story.history.check(Found(both(), {}, {("g", IN): -1})), "without what t read")


def test_offsets_of_a_committed_transaction_are_lost(story: Story) -> None:
    story.commit(story.attempt(group="g"))
    since = story.history.last_committed("g", IN)
    refused(lambda: story.history.observe_committed("g", IN, -1, since), "3 of .* went back to -1")


def test_offsets_of_an_open_transaction_are_seen(story: Story) -> None:
    story.attempt(group="g")
    refused(lambda: story.history.observe_committed("g", IN, 3, -1), "which no client asked for")


def test_an_input_is_read_by_two_transactions(story: Story) -> None:
    owner = story.owner()
    first = story.attempt("t", owner, 0, "g")
    second = story.attempt("u", owner, 1, "g")
    second.progress[0] = first.progress[0]
    for each in (first, second):
        story.commit(each)
    there = {A: [(0, "t.a"), (1, "u.a")], B: [(0, "t.b"), (1, "u.b")]}
    refused(lambda: story.history.check(Found(there, {}, {("g", IN): 3})), "both read up to 3")


def test_an_input_has_two_effects_or_none(story: Story) -> None:
    history, owner = story.history, story.owner()
    attempt = history.begin("source", owner)
    for number in range(2):
        history.send(attempt, IN, f"in{number}", number)
    story.commit(attempt)
    effect = history.begin("t", owner)
    history.send(effect, A, "out0", 5, ("g", "in0"))
    effect.progress.append(Progress("g", IN, 0, 2))
    story.commit(effect)
    inputs = [(0, "in0"), (1, "in1")]
    refused(lambda: history.check(Found({IN: inputs, A: [(0, "out0")]}, {}, {("g", IN): 2})), "in1 at 1 was read, and")
    history.send(effect, A, "out1", 6, ("g", "in1"))
    outputs = [(0, "out0"), (1, "out1")]
    history.check(Found({IN: inputs, A: outputs}, {}, {("g", IN): 2}))
    history.send(effect, A, "again", 7, ("g", "in1"))
    refused(
        lambda: history.check(Found({IN: inputs, A: [*outputs, (2, "again")]}, {}, {("g", IN): 2})), "both effects of"
    )


def test_an_effect_of_what_was_never_committed(story: Story) -> None:
    history, owner = story.history, story.owner()
    history.send(history.begin("source", owner), IN, "in0", 0)
    effect = history.begin("t", owner)
    history.send(effect, A, "out0", 5, ("g", "in0"))
    effect.progress.append(Progress("g", IN, 0, 2))
    story.commit(effect)
    refused(lambda: history.check(Found({IN: [], A: [(0, "out0")]}, {}, {("g", IN): 2})), "which is not there")


def test_a_fenced_client_commits(story: Story) -> None:
    old = story.owner("old")
    attempt = story.attempt("t", old)
    story.owner("new")
    refused(lambda: story.commit(attempt), "by a client that was fenced before")
    refused(lambda: story.history.check(Found(both())), "by a fenced client")


def test_a_fenced_client_writes(story: Story) -> None:
    old = story.owner("old")
    story.owner("new")
    refused(lambda: story.attempt("t", old), "fenced before it was sent")


def test_a_client_that_asked_before_the_other_had_the_id_is_not_fenced(story: Story) -> None:
    history = story.history
    one, other = history.claim("id", "one"), history.claim("id", "other")
    history.on_claimed(one)
    history.on_claimed(other)
    assert not one.fenced
    assert history.has_rivals(one)
    attempt = story.attempt("t", one)
    story.commit(attempt)
    history.check(Found(both()))


def test_an_abort_that_turns_out_to_be_a_commit(story: Story) -> None:
    attempt = story.commit(story.attempt())
    refused(lambda: story.history.abort(attempt), "was committed, and is aborted")
