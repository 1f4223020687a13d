"""The clean lane: what is in order, as rows of numbers."""
