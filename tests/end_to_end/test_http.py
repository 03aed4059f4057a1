"""Input from an HTTP server: one that gives parts of a file, and one that only gives whole ones."""

from __future__ import annotations

import gzip
import http.server
import os
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.end_to_end.harness import TinyRunner, json_lines, prompts

pytest.importorskip("aiohttp", reason="fsspec reads HTTP by aiohttp, which is in the extra dev")


class WholeFiles(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


class Ranges(WholeFiles):
    """Answers `Range: bytes=a-b` with that part."""

    def do_GET(self) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None:
            super().do_GET()
            return
        content = Path(self.translate_path(self.path)).read_bytes()
        part = content[int(wanted[1]) : int(wanted[2]) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {wanted[1]}-{int(wanted[1]) + len(part) - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(part)


@pytest.fixture(params=[Ranges, WholeFiles])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a server over `tmp_path`/served."""
    (tmp_path / "served").mkdir()
    handler = partial(request.param, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()  # looks for its end so often
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_lines_need_no_parts(run_tiny: TinyRunner, address: str) -> None:
    served = run_tiny.folder / "served"
    (served / "x.jsonl.gz").write_bytes(gzip.compress(json_lines(prompts("note a"))))
    (served / "y.jsonl").write_bytes(json_lines(prompts("note b", "note c")))
    result = run_tiny([], input={"path": [f"{address}/x.jsonl.gz", f"{address}/y.jsonl?X-Signature=secret"]})
    assert result.completions == ["A", "B", "C"]


def test_a_pattern_finds_the_links_of_a_page(run_tiny: TinyRunner, address: str) -> None:
    for name, text in [("x-10.jsonl", "note b"), ("x-9.jsonl", "note a"), ("y.jsonl", "note c")]:
        (run_tiny.folder / "served" / name).write_bytes(json_lines(prompts(text)))
    assert run_tiny([], input={"path": f"{address}/x-*.jsonl"}).completions == ["A", "B"]


@pytest.mark.parametrize("address", [Ranges], indirect=True)
def test_parquet_in_parts(run_tiny: TinyRunner, address: str) -> None:
    pq.write_table(pa.table({"prompt": ["note a", "note b", "note c"]}), run_tiny.folder / "served/x.parquet")
    assert run_tiny([], input={"path": f"{address}/x.parquet"}).completions == ["A", "B", "C"]


@pytest.mark.parametrize("address", [WholeFiles], indirect=True)
def test_parquet_from_a_server_without_parts_is_refused(run_tiny: TinyRunner, address: str) -> None:
    table = pa.table({"prompt": ["note a"], "ballast": [os.urandom(6 << 20)]})  # more than is asked for at once
    pq.write_table(table, run_tiny.folder / "served/x.parquet")
    result = run_tiny([], input={"path": f"{address}/x.parquet"})
    assert "x.parquet: cannot be read: the server does not support Range requests" in result.error


def test_what_a_server_does_not_have_is_named(run_tiny: TinyRunner, address: str) -> None:
    result = run_tiny([], input={"path": f"{address}/none.jsonl?X-Signature=secret"})
    assert result.error == f"{address}/none.jsonl: no such file or folder"


def test_server_that_is_not_there_is_named(run_tiny: TinyRunner) -> None:
    result = run_tiny([], input={"path": "http://127.0.0.1:1/x.jsonl"})
    assert "http://127.0.0.1:1/x.jsonl: cannot be read: Cannot connect" in result.error


def test_http_is_no_place_for_output(run_tiny: TinyRunner, address: str) -> None:
    result = run_tiny(prompts("a"), output={"path": f"{address}/out"})
    assert f"{address}/out: cannot be written: 501" in result.error
