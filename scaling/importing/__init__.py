"""Tables of other people in our column names and units: how they are read and imported."""
