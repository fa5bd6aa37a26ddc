"""Front doors: one wire protocol each, with no state beyond a connection."""
