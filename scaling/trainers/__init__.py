"""Other people's trainers as data: how each is told a layout, and what it prints."""
