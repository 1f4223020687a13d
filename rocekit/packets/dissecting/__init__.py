"""What the dissector consists of: its columns, and its short way for plain frames."""
