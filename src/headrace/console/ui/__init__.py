"""Parts that pages are made of: text, tables, charts, dialogs, and the frame around them."""
