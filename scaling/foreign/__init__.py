"""Tables of others: read, checked, and completed by what their columns imply."""
