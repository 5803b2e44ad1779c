"""Tables, sentences and charts become one page."""
