"""Counters on trial: what devices counted between two snapshots, and what the packets say to that."""
