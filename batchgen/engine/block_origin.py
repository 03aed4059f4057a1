"""BlockOrigin: where the first tokens of a block come from, while a step is being decided. Decides nothing.

A block that this step fills may have tokens from earlier steps, and tokens that this step computes for one row or for
several: whoever copies its beginning takes each from where it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from batchgen.engine.request import Request
from batchgen.engine.step import BlockCopy, Repeat


class Computed(NamedTuple):
    """Tokens `[start, stop)` of a request, computed in this step."""

    request: Request
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class BlockOrigin:
    """The first tokens of a block: `num_earlier` of block `earlier`, as it was before this step, and what follows."""

    earlier: int
    num_earlier: int
    computed: tuple[Computed, ...] = ()

    @property
    def num_tokens(self) -> int:
        return self.num_earlier + sum(part.stop - part.start for part in self.computed)

    def first(self, num_tokens: int) -> BlockOrigin:
        """The first `num_tokens` of them."""
        left = num_tokens - self.num_earlier
        parts: list[Computed] = []
        for part in self.computed:
            if left <= 0:
                break
            parts.append(part._replace(stop=min(part.stop, part.start + left)))
            left -= part.stop - part.start
        return BlockOrigin(self.earlier, min(self.num_earlier, num_tokens), tuple(parts))

    def followed_by(self, computed: tuple[Computed, ...]) -> BlockOrigin:
        return BlockOrigin(self.earlier, self.num_earlier, self.computed + computed)

    def copies(self, target: int) -> list[BlockCopy]:
        """What goes to block `target` before the step. It may be there: nobody wanted it, and it was first at hand."""
        return [BlockCopy(self.earlier, target)] if self.num_earlier and self.earlier != target else []

    def repeats(self, target: int) -> list[Repeat]:
        """What goes to block `target` while the step is computed."""
        return [Repeat(*part, target) for part in self.computed]
