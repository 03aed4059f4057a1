"""Input rows: files, formats and columns. Knows nothing of prompts, tokens or models."""
