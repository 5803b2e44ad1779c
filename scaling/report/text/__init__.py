"""Words and numbers as the report writes them."""
