"""The seeded simulator: brokers on machines where time, disk, network and scheduling come from one number.

The idea it rests on: a broker touches the outside only through the asyncio loop it runs on and the `Runtime` it is
given. Both are replaced here. Time jumps from timer to timer, the disk loses what was not synced, offloaded work
finishes when the seed decides, and the same seed gives the same run, bit for bit. `World` puts the parts together;
`python -m simulation` runs campaigns over many seeds.
"""
