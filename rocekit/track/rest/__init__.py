"""Connections at rest: what a live view keeps of those that are not used for a while, in few bytes."""
