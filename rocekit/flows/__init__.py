"""What each one-way flow of packets has: counts, sizes, classes, congestion marks, silences."""
