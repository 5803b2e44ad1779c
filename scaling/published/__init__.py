"""Published measurements whose licences allow shipping them with this project."""
