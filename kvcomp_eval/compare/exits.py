"""Exit codes of the subcommands."""

#: Fine; something failed or became worse; nothing could be run.
OK, BAD, UNUSABLE = 0, 1, 2
