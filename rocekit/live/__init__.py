"""A live interface: traced line by line, as a table, as metrics."""
