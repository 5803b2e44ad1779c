"""What the report says: answers, titles and figures."""
