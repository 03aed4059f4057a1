"""Rows out: the output folder, its journal, its lock and its part files. Knows nothing of how a row was answered."""
