"""HTTP/1.1 for the doors that speak it: codec, connections and a listener, with no routes of its own."""
