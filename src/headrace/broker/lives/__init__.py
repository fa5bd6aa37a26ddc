"""The lives of messages: produced, delivered to whom, settled or given back, dead, sent back.

records.py         what a record tells of its life
tracer.py          puts together what is known
client_traces.py   what RocketMQ's clients record
source.py          what this broker knows, for `GET /v1/life`; `headrace trace` reads over Kafka's wire
"""
