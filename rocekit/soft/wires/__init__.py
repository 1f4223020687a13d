"""What soft devices send over: an interface, one machine's processes, memory; and faults on the way."""
