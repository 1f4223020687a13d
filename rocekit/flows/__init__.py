"""What is added up of each one-way flow of packets."""
