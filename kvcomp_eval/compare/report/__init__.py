"""A run as tables in the terminal, Markdown, CSV, and one self-contained page."""
