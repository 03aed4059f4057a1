"""Print the table of docs/models.md: the families held to transformers' own output, and what their tests turn on.

python -m scripts.list_families
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.families.registry import FAMILIES


def table() -> Iterator[str]:
    """Markdown, a line a family, by name."""
    yield "| family | `model_type` | on in its test |"
    yield "|---|---|---|"
    for kind, family in sorted(FAMILIES.items(), key=lambda item: item[1].title.lower()):
        yield f"| {family.title} | `{kind}` | {', '.join([*family.features, *family.traits])} |"


if __name__ == "__main__":
    print("\n".join(table()))
