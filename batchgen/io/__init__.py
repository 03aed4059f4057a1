"""Reads and writes rows. Knows file formats and columns; knows nothing of prompts, tokens or models."""

from __future__ import annotations

from batchgen.io.input.readers import Input, open_input
from batchgen.io.input.rows import Row
from batchgen.io.output.folder import OutputFolder
from batchgen.io.output.schema import output_schema
from batchgen.io.output.writers import ResultWriter

__all__ = ["Input", "OutputFolder", "ResultWriter", "Row", "open_input", "output_schema"]
