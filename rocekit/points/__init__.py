"""Where captures were taken, and what each of them saw."""
