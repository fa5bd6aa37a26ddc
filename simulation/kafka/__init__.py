"""A broker behind its Kafka door, and the client side that campaigns share."""
