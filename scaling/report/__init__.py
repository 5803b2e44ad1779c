"""Tables to charts, sentences and one self-contained page."""
