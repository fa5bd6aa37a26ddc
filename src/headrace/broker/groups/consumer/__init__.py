"""Groups of Kafka 4's consumer protocol (KIP-848): the broker divides the work, and members follow by heartbeats.

consumer_coordinator.py  finds the group of a heartbeat
consumer_group.py        one group: heartbeats, epochs, sessions
consumer_roster.py       its members, what they subscribe to, and which partitions each has
changed_records.py       what of it is changed and not written yet
reconciliation.py        how one member gets from what it has to what it shall have
assignors.py             which member gets what: `uniform` and `range`
subscriptions.py         names and patterns, and the topics that they mean
consumer_member.py       one member
heartbeat.py             heartbeats and answers
places.py                sets of partitions
consumer_codec.py        the formats in `__consumer_offsets`
"""
