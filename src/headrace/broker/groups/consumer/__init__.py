"""Groups of Kafka 4's consumer protocol (KIP-848): the broker divides the work, and members follow by heartbeats.

group.py          one group: heartbeats, epochs, sessions
reconciling.py    how one member gets from what it has to what it shall have
assignors.py      who shall have what: `uniform` and `range`
subscriptions.py  names and patterns, and the topics that they mean
member.py         one member
protocol.py       heartbeats, answers, descriptions
places.py         sets of partitions
records.py        the formats in `__consumer_offsets`
"""
