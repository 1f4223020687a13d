"""Journal lines of a process's records, and which of them are written."""
