"""docs/models.md holds the tables of the families that the parity tests run."""

from __future__ import annotations

from scripts.list_families import DOCS, multimodal_table, table, with_tables


def test_the_docs_hold_the_tables_of_the_registries() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert with_tables(text) == text, "run: python -m scripts.list_families --write"
    assert table() in text
    assert multimodal_table() in text


def test_writing_replaces_the_tables_and_nothing_else() -> None:
    old = "a\n\n| family | x |\n|---|---|\n| Old | `old` |\n\nb\n\n| multimodal family | x |\n|---|---|\n\nc\n"
    assert with_tables(old) == f"a\n\n{table()}\nb\n\n{multimodal_table()}\nc\n"
