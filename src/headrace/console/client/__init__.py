"""The REST API of a broker, typed: one class, one method for each call that the console makes."""
