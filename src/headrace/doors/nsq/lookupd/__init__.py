"""What nsqlookupd is to NSQ: which brokers have a topic, kept in memory and told by TCP and HTTP."""
