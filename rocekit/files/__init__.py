"""Frames from files, pipes and interfaces, batch by batch; and writing them."""
