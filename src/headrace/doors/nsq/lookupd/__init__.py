"""What nsqlookupd is to NSQ: which brokers have a topic, kept in memory and served over TCP and HTTP."""
