"""Prompts: a row to token ids and back to text. Knows the tokenizer and its template; knows no engine."""
