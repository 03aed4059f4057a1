"""python -m batchgen"""

from __future__ import annotations

from batchgen.cli import main

main(prog_name="batchgen")
