"""Print the table of docs/models.md from the registry of the parity tests: python -m scripts.list_families

Each family has a line with its name, transformers' model_type, and what its parity configuration turns on. `--write`
puts the table into docs/models.md.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tests.families.family import Family
from tests.families.registry import FAMILIES

DOCS = Path(__file__).parents[1] / "docs/models.md"
_TABLE = re.compile(r"^\| family \|.*?\n(?!\|)", re.MULTILINE | re.DOTALL)


def table() -> str:
    """Return the table in Markdown, sorted by name."""
    families = sorted(FAMILIES.items(), key=lambda item: item[1].title.lower())
    lines = ["| family | `model_type` | what its parity configuration turns on |", "|---|---|---|"]
    lines += [f"| {family.title} | `{name}` | {_special(family)} |" for name, family in families]
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    """Replace the table in the text of docs/models.md."""
    return _TABLE.sub(lambda _: table(), text)


def _special(family: Family) -> str:
    return ", ".join([*family.features, *family.traits])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into docs/models.md")
    if parser.parse_args().write:
        DOCS.write_text(with_table(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table(), end="")


if __name__ == "__main__":
    main()
