"""The row schema, and reading and writing of the files that runs leave."""
