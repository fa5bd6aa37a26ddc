"""The story of a question: in order whatever the order of arrival, told once, idle in time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from headrace.pipeline.jobs.sessions_story import (
    BROKEN,
    CHANGE,
    EVENT,
    EVENTS,
    LATE,
    STATE,
    Event,
    Output,
    Question,
    Rules,
    Story,
)

MINUTE = 60_000


def event(name: str, at: int, number: int | None = None, **data: Any) -> Event:
    return Event(name, at, number, (0, at), data)


def told(found: list[Output], kind: str) -> list[dict[str, Any]]:
    return [json.loads(each.value) for each in found if each.kind == kind]


def again(story: Story) -> Story:
    """As it is in the next batch."""
    return Story.loaded(story.name, story.kept())


def test_states() -> None:
    question = Question()
    assert question.state == "unasked"
    steps = [
        ("commented", "unasked"), ("asked", "open"), ("voted", "open"), ("answered", "answered"),
        ("accepted", "accepted"), ("answered", "accepted"), ("closed", "closed"), ("answered", "closed"),
        ("reopened", "accepted"),
    ]  # fmt: skip
    for at, (name, state) in enumerate(steps):
        question = question.after(event(name, 10 * at))
        assert question.state == state, name
    assert (question.asked, question.answers, question.comments, question.votes) == (10, 3, 1, 1)
    assert (question.first_answer, question.first_answer_after, question.last) == (30, 20, 80)
    assert Question().after(event("voted", 1, value=-3)).votes == -3
    assert Question().after(event("asked", 1)).after(event("closed", 2)).after(event("reopened", 3)).state == "open"


def test_what_comes_late_is_put_where_it_belongs() -> None:
    story = Story.loaded("q", None)
    first = story.take([event("asked", 100, 1), event("accepted", 300, 3)], 0, Rules())
    assert [each["state"] for each in told(first, STATE)] == ["accepted"]
    assert [(each["from"], each["to"]) for each in told(first, CHANGE)] == [(None, "open"), ("open", "accepted")]
    assert not told(first, EVENT)
    story = again(story)
    second = story.take([event("answered", 200, 2)], 50, Rules())
    assert [(each["state"], each["answers"], each["first_answer_after"]) for each in told(second, STATE)] == [
        ("accepted", 1, 100)
    ]
    assert not told(second, CHANGE)
    assert story.timer == 100
    # The watermark has passed two of them: they are told, in order, with what they were at the time.
    story = again(story)
    third = story.take([], 250, Rules())
    assert [(each["event"], each["number"], each["before"], each["state"]) for each in told(third, EVENT)] == [
        ("asked", 1, None, "open"),
        ("answered", 2, "open", "answered"),
    ]
    assert [each["since_asked"] for each in told(third, EVENT)] == [0, 100]
    assert not told(third, STATE)
    assert again(story).timer == 300


def test_what_comes_twice_or_behind_what_is_settled_is_put_aside() -> None:
    story = Story.loaded("q", None)
    story.take([event("asked", 100, 1), event("answered", 110, 2)], 0, Rules())
    found = story.take([event("answered", 110, 2, by="me")], 0, Rules())
    assert [(each["question"], each["by"]) for each in told(found, BROKEN)] == [("q", "me")]
    assert len(found) == 1
    story.take([], 200, Rules())
    assert told(story.take([event("voted", 300, 2)], 200, Rules()), BROKEN)
    assert story.question.votes == 0


def test_numbers_say_the_order_whatever_the_clocks_say() -> None:
    story = Story.loaded("q", None)
    story.take(
        [event("accepted", 90, 3), event("asked", 100, 1), event("closed", 80, 4), event("answered", 95, 2)], 0, Rules()
    )
    # The first one is the youngest: nothing is settled before it is.
    assert not story.take([], 99, Rules())
    found = story.take([], 100, Rules())
    assert [each["event"] for each in told(found, EVENT)] == ["asked", "answered", "accepted", "closed"]
    assert (story.question.state, story.question.last) == ("closed", 100)


def test_a_question_that_hears_nothing_becomes_idle_and_wakes() -> None:
    story = Story.loaded("q", None)
    story.take([event("asked", 1_000)], 0, Rules(MINUTE))
    assert story.timer == 1_000
    story = again(story)
    story.take([], 1_500, Rules(MINUTE))
    assert story.timer == 1_000 + MINUTE
    story = again(story)
    found = story.take([], 1_000 + MINUTE, Rules(MINUTE))
    assert told(found, CHANGE) == [{"question": "q", "from": "open", "to": "idle", "at": 1_000 + MINUTE}]
    assert [each["state"] for each in told(found, STATE)] == ["idle"]
    assert story.timer is None
    story = again(story)
    found = story.take([event("answered", 200_000)], 100_000, Rules(MINUTE))
    assert [(each["from"], each["to"]) for each in told(found, CHANGE)] == [("idle", "answered")]


def test_changes_tell_every_step_and_do_not_depend_on_batches() -> None:
    batch = [event("asked", 10), event("answered", 20), event("commented", 200_000), event("accepted", 200_010)]
    steps = [
        (None, "open", 10), ("open", "answered", 20), ("answered", "idle", 20 + MINUTE),
        ("idle", "answered", 200_000), ("answered", "accepted", 200_010),
    ]  # fmt: skip
    whole = Story.loaded("q", None)
    found = whole.take(batch, 0, Rules(MINUTE)) + whole.take([], 300_000, Rules(MINUTE))
    assert [(each["from"], each["to"], each["at"]) for each in told(found, CHANGE)] == steps
    one_by_one = Story.loaded("q", None)
    others: list[Output] = []
    for each in batch:
        # The watermark has come to just before the event.
        others += one_by_one.take([], each.at - 1, Rules(MINUTE)) + one_by_one.take([each], each.at - 1, Rules(MINUTE))
        one_by_one = again(one_by_one)
    others += one_by_one.take([], 300_000, Rules(MINUTE))
    assert told(others, CHANGE) == told(found, CHANGE)
    assert told(others, EVENT) == told(found, EVENT)
    assert told(found, EVENT)[2]["before"] == "idle"


def test_what_is_done_does_not_idle() -> None:
    for end in ("accepted", "closed"):
        story = Story.loaded("q", None)
        story.take([event("asked", 1), event(end, 2)], 0, Rules(MINUTE))
        story.take([], 10 * MINUTE, Rules(MINUTE))
        assert (story.question.state, story.timer) == (end, None)


def test_what_comes_behind_the_watermark_is_late_unless_it_fits() -> None:
    story = Story.loaded("q", None)
    # Of this question nothing is known, and what is before it may be settled.
    found = story.take([event("asked", 100, by="me")], 150, Rules())
    (late,) = told(found, LATE)
    assert (late["question"], late["event"], late["at"], late["data"]) == ("q", "asked", 100, {"by": "me"})
    assert late["reason"] == "it came 50 ms behind the watermark, and nothing is known of the question"
    assert len(found) == 1
    assert story.empty
    story.take([event("asked", 200)], 150, Rules())
    assert told(story.take([], 250, Rules()), EVENT)
    # It is behind the watermark, and nothing of the question is behind it.
    found = story.take([event("answered", 240)], 300, Rules())
    assert [(each["event"], each["number"]) for each in told(found, EVENT)] == [("answered", 2)]
    found = story.take([event("voted", 239)], 300, Rules())
    assert [each["reason"] for each in told(found, LATE)] == [
        "it came 61 ms behind the watermark, and the question has gone on"
    ]
    assert (len(found), story.question.votes) == (1, 0)
    # By its number, where there is one.
    story = Story.loaded("q", None)
    story.take([event("asked", 200, 1), event("answered", 210, 3)], 0, Rules())
    story.take([], 250, Rules())
    assert told(story.take([event("voted", 205, 4)], 250, Rules()), EVENT)
    assert told(story.take([event("voted", 205, 2)], 250, Rules()), LATE)
    # An idle question wakes by what comes after it fell asleep.
    story = Story.loaded("q", None)
    story.take([event("asked", 100)], 0, Rules(idle=50))
    story.take([], 200, Rules(idle=50))
    assert told(story.take([event("voted", 140)], 200, Rules(idle=50)), LATE)
    assert told(story.take([event("voted", 160)], 200, Rules(idle=50)), EVENT)


def test_what_is_late_does_not_depend_on_the_order_in_a_batch() -> None:
    batch = [event("asked", 100), event("answered", 200)]
    for some in (batch, batch[::-1]):
        story = Story.loaded("q", None)
        found = story.take(some, 150, Rules())
        assert [each["event"] for each in told(found, LATE)] == ["asked"]
        assert story.question.state == "answered"


@pytest.mark.parametrize(("names", "state"), [(["asked"], "idle"), (["asked", "closed"], "closed")])
def test_a_question_that_is_silent_for_long_is_forgotten(names: list[str], state: str) -> None:
    rules = Rules(idle=MINUTE, forget=3 * MINUTE)
    story = Story.loaded("q", None)
    story.take([event(name, 1_000 + at) for at, name in enumerate(names)], 0, rules)
    last = 1_000 + len(names) - 1
    story.take([], 2 * MINUTE, rules)
    assert (story.question.state, story.timer) == (state, last + 3 * MINUTE)
    story = again(story)
    assert not story.take([], last + 3 * MINUTE - 1, rules)
    found = story.take([], last + 3 * MINUTE, rules)
    # Its record stays, and says that it is the last one.
    assert [(each["state"], each["forgotten"]) for each in told(found, STATE)] == [(state, last + 3 * MINUTE)]
    assert told(found, CHANGE) == [{"question": "q", "from": state, "to": "forgotten", "at": last + 3 * MINUTE}]
    assert len(found) == 2
    assert (story.empty, story.timer) == (True, None)
    # A watermark that leaps is no other than one that walks.
    leaping = Story.loaded("q", None)
    leaping.take([event(name, 1_000 + at) for at, name in enumerate(names)], 0, rules)
    found = leaping.take([], 9 * MINUTE, rules)
    changes = [(each["from"], each["to"]) for each in told(found, CHANGE)]
    assert changes == ([("open", "idle")] if state == "idle" else []) + [(state, "forgotten")]
    assert [each["forgotten"] for each in told(found, STATE)] == [last + 3 * MINUTE]


def test_with_tombstones_the_record_goes_too() -> None:
    story = Story.loaded("q", None)
    rules = Rules(forget=MINUTE, tombstones=True)
    story.take([event("asked", 1_000)], 0, rules)
    found = story.take([], 2 * MINUTE, rules)
    assert [(each.key, each.value) for each in found if each.kind == STATE] == [("q", None)]
    assert [each["to"] for each in told(found, CHANGE)] == ["forgotten"]


def test_an_event_in_time_keeps_a_question_from_being_forgotten() -> None:
    rules = Rules(forget=MINUTE)
    story = Story.loaded("q", None)
    story.take([event("asked", 1_000), event("closed", 2_000)], 0, rules)
    story.take([], 30_000, rules)
    # It comes in the batch in which the question would have been forgotten.
    found = story.take([event("commented", 2_000 + MINUTE + 5)], 2_000 + MINUTE, rules)
    assert [each["comments"] for each in told(found, STATE)] == [1]
    assert not told(found, CHANGE)
    story.take([], 2 * MINUTE, rules)
    assert story.timer == 2_005 + 2 * MINUTE


def test_what_comes_for_a_forgotten_question_begins_anew_or_is_put_aside() -> None:
    story = Story.loaded("q", None)
    found = story.take([event("commented", 500), event("answered", 600)], 400, Rules(forget=MINUTE))
    assert [(each["state"], each["answers"], each["events"]) for each in told(found, STATE)] == [("answered", 1, 2)]
    aside = Rules(forget=MINUTE, unasked=False)
    story = Story.loaded("q", None)
    assert not story.take([event("commented", 500), event("answered", 600)], 400, aside)
    assert story.timer == 500
    story = again(story)
    # Nothing can come before the first any more.
    found = story.take([], 550, aside)
    assert [(each["event"], each["reason"]) for each in told(found, LATE)] == [
        ("commented", "nothing is known of the question: it is forgotten, or not asked")
    ]
    assert (len(found), story.timer) == (1, 600)
    # It was asked after all: the answer had overtaken it.
    story = again(story)
    found = story.take([event("asked", 560)], 550, aside)
    assert [(each["from"], each["to"]) for each in told(found, CHANGE)] == [(None, "open"), ("open", "answered")]
    assert [each["events"] for each in told(found, STATE)] == [2]
    story = Story.loaded("q", None)
    story.take([event("voted", 600)], 550, aside)
    assert told(story.take([], 600, aside), LATE)
    assert story.empty


names = st.sampled_from(EVENTS)
histories = st.lists(st.tuples(names, st.integers(0, 500)), max_size=12)


@given(histories, st.data(), st.booleans())
def test_any_order_of_arrival_comes_to_the_same(
    history: list[tuple[str, int]], data: st.DataObject, numbered: bool
) -> None:
    if numbered:
        history = sorted(history, key=lambda each: each[1])
    events = [Event(name, at, index if numbered else None, (0, index)) for index, (name, at) in enumerate(history)]
    in_order = sorted(events, key=lambda each: each.order)
    question = Question()
    for each in in_order:
        question = question.after(each)
    story = Story.loaded("q", None)
    found: list[Output] = []
    for each in data.draw(st.permutations(events)):
        found += story.take([each], -1, Rules())
        story = again(story)
    assert story.question == question
    found += story.take([], 1_000, Rules())
    assert story.question == question
    assert not told(found, BROKEN)
    assert [(each["event"], each["at"]) for each in told(found, EVENT)] == [(each.name, each.at) for each in in_order]
    # Whoever adds up the changes knows how many questions are in which state.
    counts: dict[str, int] = {}
    for each in told(found, CHANGE):
        counts[each["to"]] = counts.get(each["to"], 0) + 1
        if each["from"] is not None:
            counts[each["from"]] -= 1
    assert {state: count for state, count in counts.items() if count} == ({question.state: 1} if events else {})
    if events:
        last = told(found, STATE)[-1]
        assert (last["state"], last["events"]) == (question.state, len(events))


@given(histories, st.data(), st.booleans(), st.sampled_from([None, 40]), st.sampled_from([None, 60]), st.booleans())
def test_every_event_is_told_once_or_is_late_or_broken(
    history: list[tuple[str, int]],
    data: st.DataObject,
    numbered: bool,
    idle: int | None,
    forget: int | None,
    unasked: bool,
) -> None:
    rules = Rules(idle, forget, unasked=unasked)
    events = [
        Event(name, at, index if numbered else None, (0, index), {"id": index})
        for index, (name, at) in enumerate(history)
    ]
    kept: str | None = None
    watermark = -1
    found: list[Output] = []
    for some in [*([each] for each in data.draw(st.permutations(events))), []]:
        story = Story.loaded("q", kept)
        if not some:
            watermark = 10_000
        found += story.take(some, watermark, rules)
        kept = None if story.empty else story.kept()
        watermark += data.draw(st.integers(0, 80))
        # What has something to tell is woken.
        if story.timer is not None and story.timer <= watermark:
            found += story.take([], watermark, rules)
            kept = None if story.empty else story.kept()
    ids = [each["data"]["id"] for kind in (EVENT, LATE) for each in told(found, kind)]
    ids += [each["id"] for each in told(found, BROKEN)]
    assert sorted(ids) == list(range(len(events)))
    counts: dict[str, int] = {}
    for each in told(found, CHANGE):
        counts[each["to"]] = counts.get(each["to"], 0) + 1
        if each["from"] is not None:
            counts[each["from"]] -= 1
    assert min(counts.values(), default=0) >= 0
    forgotten = counts.pop("forgotten", 0)
    assert sum(counts.values()) == (0 if kept is None else 1)
    if forget is not None:
        assert kept is None
        assert bool(forgotten) == bool(told(found, EVENT))


@pytest.mark.parametrize("idle", [None, 50])
def test_a_batch_that_runs_again_tells_the_same(idle: int | None) -> None:
    story = Story.loaded("q", None)
    story.take([event("asked", 1, 1)], 0, Rules(idle))
    kept = story.kept()
    batch = [event("answered", 20, 3), event("commented", 10, 2)]
    one, two = Story.loaded("q", kept), Story.loaded("q", kept)
    assert one.take(batch, 15, Rules(idle)) == two.take(batch[::-1], 15, Rules(idle))
    assert one.kept() == two.kept()
