"""The protocol engine: queue pairs, memory and counters, fed with bytes and the time; no I/O."""
