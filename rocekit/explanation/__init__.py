"""What happened to one transfer, in numbers, between hosts, and to each packet."""
