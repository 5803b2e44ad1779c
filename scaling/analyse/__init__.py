"""Turn the rows of a study into tables: rates, comparisons, returns and advice."""
