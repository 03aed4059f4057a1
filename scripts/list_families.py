"""Print the tables of docs/models.md from the registries of the parity tests: python -m scripts.list_families

Each family has a line with its name, transformers' model_type, and what its parity configuration turns on; each
multimodal one a line with its language part. `--write` puts the tables into docs/models.md.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tests.families.family import Family
from tests.families.multimodal import MULTIMODAL
from tests.families.registry import FAMILIES

DOCS = Path(__file__).parents[1] / "docs/models.md"
_TABLES = r"^\| {} \|.*?\n(?!\|)"  # from the first column's heading to the last line


def table() -> str:
    """Return the table in Markdown, sorted by name."""
    families = sorted(FAMILIES.items(), key=lambda item: item[1].title.lower())
    lines = ["| family | `model_type` | what its parity configuration turns on |", "|---|---|---|"]
    lines += [f"| {family.title} | `{name}` | {_special(family)} |" for name, family in families]
    return "\n".join(lines) + "\n"


def multimodal_table() -> str:
    """Return the table of multimodal families in Markdown, sorted by name."""
    families = sorted(MULTIMODAL.items(), key=lambda item: item[1].title.lower())
    lines = ["| multimodal family | `model_type` | language part in its parity test |", "|---|---|---|"]
    lines += [f"| {family.title} | `{name}` | `{family.text}` |" for name, family in families]
    return "\n".join(lines) + "\n"


def with_tables(text: str) -> str:
    """Replace the tables in the text of docs/models.md."""
    for heading, lines in (("family", table()), ("multimodal family", multimodal_table())):
        pattern = re.compile(_TABLES.format(heading), re.MULTILINE | re.DOTALL)
        text = pattern.sub(lines.replace("\\", r"\\"), text)
    return text


def _special(family: Family) -> str:
    return ", ".join([*family.features, *family.traits])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/models.md")
    if parser.parse_args().write:
        DOCS.write_text(with_tables(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table(), multimodal_table(), sep="\n", end="")


if __name__ == "__main__":
    main()
