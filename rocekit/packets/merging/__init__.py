"""Several captures of the same traffic as one sequence of packets."""
