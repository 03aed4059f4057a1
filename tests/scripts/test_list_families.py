"""docs/models.md holds the table of the families that the parity tests run."""

from __future__ import annotations

from scripts.list_families import DOCS, table, with_table


def test_the_docs_hold_the_table_of_the_registry() -> None:
    assert table() in DOCS.read_text(encoding="utf-8"), "run: python -m scripts.list_families --write"


def test_writing_replaces_the_table_and_nothing_else() -> None:
    old = "before\n\n| family | x |\n|---|---|\n| Old | `old` |\n\nafter\n"
    assert with_table(old) == f"before\n\n{table()}\nafter\n"
