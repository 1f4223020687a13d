"""What tells which two flows are a QP pair: journals, handshakes, source ports, times of responses."""
