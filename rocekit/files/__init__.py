"""Frames from files, pipes and interfaces, batch by batch; and writing them."""

JOURNAL_SUFFIX = ".journal.jsonl"
"""How names of journals end that are found beside captures."""
