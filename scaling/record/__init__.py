"""What runs leave: rows, their schema, and every file of a study."""
