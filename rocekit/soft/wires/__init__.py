"""The wires of soft devices: on an interface, between processes, or in memory; and faults on them."""
