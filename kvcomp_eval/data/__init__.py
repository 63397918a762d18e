"""Benchmark data: found in the user's folders or on the hub, checked, and read; one module per kind of thing.

Nothing here knows lmms-eval; the tasks (``tasks/``) turn what these modules return into documents.
"""
