"""What the routes do: one file for each kind of thing that they are about."""
