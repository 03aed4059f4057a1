"""Prompts: converts rows to token ids, and token ids to text. Knows the tokenizer and the templates, not the engine."""
