"""Packet columns to connections and transfers."""
