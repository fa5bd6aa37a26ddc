"""Parting a chunk: wherever it is cut, no offset moves over what is not done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.sdk.chunk import Block, Chunk, positions
from headrace.sdk.message import Message, Outgoing


def message(partition: int, offset: int) -> Message:
    return Message("t", b"", partition=partition, offset=offset)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.data())
def test_a_cut_divides_every_partition(partitions: list[int], data: st.DataObject) -> None:
    ends = [0, 0, 0]
    messages = []
    for partition in partitions:
        messages.append(message(partition, ends[partition]))
        ends[partition] += data.draw(st.integers(1, 2))
    chunk = Chunk(messages)
    left = data.draw(st.permutations(messages)) if data.draw(st.booleans()) else list(messages)
    while left:
        count = data.draw(st.integers(1, 4))
        chunk.settle(left[:count], [Outgoing("out", b"")])
        left = left[count:]
    assert chunk.done.is_set()
    chunk.part()
    blocks = list(chunk.left)
    assert sorted(each.offset for block in blocks for each in block.messages) == sorted(
        each.offset for each in messages
    )
    for cut in range(1, len(blocks)):
        moved = {each.partition: each.offset for each in positions(blocks[:cut])}
        behind = [each for block in blocks[cut:] for each in block.messages]
        assert all(each.offset >= moved.get(each.partition, 0) for each in behind)


def test_messages_by_themselves_can_all_be_told_apart() -> None:
    messages = [message(offset % 3, offset // 3) for offset in range(30)]
    chunk = Chunk(messages)
    for each in reversed(messages):
        chunk.settle([each], [])
    chunk.part()
    blocks = list(chunk.left)
    assert [block.messages for block in blocks] == [[each] for each in messages]

    chunk.finish(blocks[:10])
    assert chunk.first() == {("t", 0): 4, ("t", 1): 3, ("t", 2): 3}
    assert chunk.whole() == Block(messages[10:], [])
    assert chunk.left == blocks[10:]


def test_only_what_lies_behind_one_that_waits_waits_too() -> None:
    messages = [message(offset % 3, offset // 3) for offset in range(9)]
    chunk = Chunk(messages)
    for each in messages:
        chunk.settle([each], [])
    chunk.part()
    blocks = list(chunk.left)
    blocks[1].due, blocks[1].tries = 100.0, 1
    blocks[5].tries = 1
    assert chunk.free(99.0) == [[blocks[0], blocks[2], blocks[3]], [blocks[5]], [blocks[6], blocks[8]]]
    assert chunk.free(100.0) == [
        [blocks[0]], [blocks[1]], [blocks[2], blocks[3], blocks[4]], [blocks[5]], [blocks[6], blocks[7], blocks[8]],
    ]  # fmt: skip
