"""What the gaps of a capture hide: how many PSNs a READ takes, and where messages end."""
