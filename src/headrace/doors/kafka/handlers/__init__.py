"""One file for each Kafka API that is off the hot path, named by its key and name; `registry.py` lists them."""
