"""Plan: which prompts share prefixes, and in what order they run. Pure functions on token ids."""
