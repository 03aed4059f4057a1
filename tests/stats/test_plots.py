"""Plots are SVG that can be embedded in any page: they use only the page's colours, no address and no common ids."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from batchgen.stats.plots import Plot, plot_blocks, plot_rows
from tests.stats.harness import run_script


@pytest.fixture(scope="module")
def plots() -> list[Plot]:
    steps = run_script([f"aaaa{letter}" for letter in "bcdefghi"], max_num_seqs=3).artifact().steps
    return [plot_blocks(steps, 4), plot_rows(steps)]


def test_every_plot_scales_and_stays_within_the_page(plots: list[Plot]) -> None:
    for plot in plots:
        for svg in (plot.wide, plot.narrow):
            assert svg.startswith("<svg viewBox=")
            assert not re.search(
                r"#[0-9a-fA-F]{6}|https?:|<svg[^>]* width", re.sub(r"url\(#\w+\)|href=\"#\w+\"", "", svg)
            )
            assert "<text" in svg


def test_no_id_is_used_twice(plots: list[Plot]) -> None:
    ids = [found for plot in plots for found in re.findall(r' id="([^"]*)"', plot.wide + plot.narrow)]
    assert ids
    assert len(ids) == len(set(ids))


def test_blocks_have_four_parts_and_rows_two_lines(plots: list[Plot]) -> None:
    blocks, rows = (set(re.findall(r"var\(--(\w+)\)", plot.wide)) - {"ink", "grid"} for plot in plots)
    assert blocks == {"filled", "empty", "cached", "free"}
    assert rows == {"running", "waiting"}


def test_a_run_of_one_step_has_plots() -> None:
    steps = run_script(["aaaab"], max_tokens=1).artifact().steps
    assert steps.num_rows == 1
    ElementTree.fromstring(plot_rows(steps).wide.replace("xlink:href", "href"))
