"""Io: rows in, rows out. Knows file formats and columns; knows nothing of prompts, tokens or models."""
