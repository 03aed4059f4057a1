"""Plots of a run's steps as inline SVG, drawn by matplotlib (the extra `report`). Knows colours by name only.

Every colour is a CSS variable of the page, so that one plot serves the light and the dark theme. Text stays text. An
SVG scales with its box, so each plot is drawn twice, wide and narrow, and the page shows the one that stays legible.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_POINTS = 500  # more points cannot be told apart
_POINTS_PER_INCH = 72  # of an SVG
_WIDE, _NARROW = (760, 250), (360, 230)  # units of the viewBox; a letter is 11 units high

# Colour that matplotlib is given -> colour that replaces it in the page.
_COLOURS = {
    "#010101": "var(--ink)",
    "#020202": "var(--grid)",
    "#030303": "var(--filled)",
    "#040404": "var(--empty)",
    "#050505": "var(--cached)",
    "#060606": "var(--free)",
    "#070707": "var(--running)",
    "#080808": "var(--waiting)",
}
_INK, _GRID, _FILLED, _EMPTY, _CACHED, _FREE, _RUNNING, _WAITING = _COLOURS
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 11,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0,
    "grid.color": _GRID,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot in two sizes, each an `<svg>` element."""

    wide: str
    narrow: str


def can_plot() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def plot_blocks(steps: pa.Table, block_size: int) -> Plot:
    """Plot the KV blocks over time, split by what they held. `steps` must have at least one row."""
    columns = _columns(steps)
    empty = columns["num_empty_slots"] / block_size
    parts = [columns["num_used_blocks"] - empty, empty, columns["num_idle_blocks"], columns["num_free_blocks"]]

    def draw(axes: Axes) -> None:
        axes.stackplot(columns["ended_at_seconds"], *parts, colors=[_FILLED, _EMPTY, _CACHED, _FREE], linewidth=0)
        axes.set_ylim(0, np.sum(parts, axis=0).max())
        axes.set_ylabel("KV blocks")

    return _draw_twice(draw, "KV blocks over time, split into filled, empty, cached and free")


def plot_rows(steps: pa.Table) -> Plot:
    """Plot the running and waiting rows over time. `steps` must have at least one row."""
    columns = _columns(steps)

    def draw(axes: Axes) -> None:
        for name, colour in (("num_waiting", _WAITING), ("num_running", _RUNNING)):
            axes.step(columns["ended_at_seconds"], columns[name], color=colour, linewidth=1.8)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("rows")

    return _draw_twice(draw, "Running and waiting rows over time")


def _columns(steps: pa.Table) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Return the columns of at most 500 evenly spaced steps."""
    chosen = np.unique(np.linspace(0, steps.num_rows - 1, _MOST_POINTS).round().astype(np.int64))
    sample = steps.take(chosen)
    return {name: sample[name].to_numpy().astype(np.float64) for name in sample.column_names}


def _draw_twice(draw: Callable[[Axes], None], title: str) -> Plot:
    wide, narrow = (_svg(draw, title, size) for size in (_WIDE, _NARROW))
    return Plot(wide, narrow)


def _svg(draw: Callable[[Axes], None], title: str, size: Sequence[int]) -> str:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns of a home that it cannot write to
    import matplotlib as mpl
    from matplotlib.figure import Figure  # not pyplot, which has global state and may need a display

    salt = {"svg.hashsalt": f"{title} {size}"}  # gives every svg ids of its own, which are the same in every run
    with mpl.rc_context(_SETTINGS | salt):
        width, height = (length / _POINTS_PER_INCH for length in size)
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        axes.set_xlim(left=0)
        axes.set_xlabel("seconds since the first step")
        axes.locator_params("x", nbins=6)
        axes.locator_params("y", integer=True, nbins=5)
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    return _for_page(file.getvalue(), title)


def _for_page(svg: str, title: str) -> str:
    """Return only the `<svg>` element, without ids that two plots would share, and sized by its viewBox alone."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<svg[^>]*?(viewBox=\"[^\"]*\")[^>]*>", rf'<svg \1 role="img" aria-label="{title}">', svg, count=1)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)
    svg = re.sub(r" font-family: [^;]*;", "", svg)
    svg = re.sub(r"(\.\d)\d+", r"\1", svg)  # a tenth of a unit is a tenth of a pixel
    return re.sub("|".join(_COLOURS), lambda colour: _COLOURS[colour[0]], svg)
