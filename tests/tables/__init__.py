"""Tables of the documentation, made by running."""
