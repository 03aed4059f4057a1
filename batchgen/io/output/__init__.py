"""Output: the folder, its lock, its journal and its part files. Knows nothing of how a row was generated."""
