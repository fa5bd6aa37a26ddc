"""Headrace measured beside Apache Kafka: the same load, the same machine, the same run. See README.md."""
