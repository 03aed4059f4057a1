"""Plan: which prompts share what, and in what order they run. Pure decisions on token ids."""
