"""stdout and stderr: what is written to a lost one is dropped, and nothing else changes; with real descriptors."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from batchgen.console import TolerantStream, progress_bar

ROOT = Path(__file__).parents[1]
KINDS = ["closed", "full", "pipe"]  # the reader of the pipe has left
LOST = [["stdout"], ["stderr"], ["stdout", "stderr"]]


class Failing(io.StringIO):
    """A stream whose writes fail as often as it is told, and then work."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.failures = list(errors)

    def write(self, text: str) -> int:
        if self.failures:
            raise self.failures.pop(0)
        return super().write(text)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ValueError("I/O operation on closed file")])
def test_what_follows_a_failed_write_is_dropped(error: Exception) -> None:
    stream = Failing(error)
    tolerant = TolerantStream(stream)
    assert tolerant.write("one") == 3
    tolerant.writelines(["two", "three"])
    tolerant.flush()
    assert stream.getvalue() == ""


def test_a_reader_that_is_slow_misses_one_write() -> None:
    stream = Failing(BlockingIOError(11, "Resource temporarily unavailable"))
    tolerant = TolerantStream(stream)
    tolerant.write("one")
    tolerant.write("two")
    assert stream.getvalue() == "two"


def test_a_character_that_the_encoding_lacks_is_escaped() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    tolerant = TolerantStream(stream)
    tolerant.write("é!")
    tolerant.flush()
    assert raw.getvalue() == b"\\xe9!"
    full = TolerantStream(Failing(UnicodeEncodeError("ascii", "é", 0, 1, "no"), OSError(28, "No space left on device")))
    assert full.write("é") == 1


def test_a_stream_that_is_not_there_is_no_terminal() -> None:
    stream = TolerantStream(None)
    stream.write("one")
    stream.flush()
    assert not stream.isatty()
    assert stream.writable()


def test_a_bar_outlives_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(Failing):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    bar = progress_bar("rows", total=10)
    assert "rows" in terminal.getvalue()
    terminal.failures = [OSError(5, "Input/output error")] * 100
    bar.update(10)
    bar.refresh()
    bar.close()


def run(code: str, folder: Path, kind: str, lost: Sequence[str]) -> tuple[int, str]:
    """Run Python code that has lost these streams from the start; return its exit code and what stderr got."""
    closing = {"stdout": ">&-", "stderr": "2>&-"}
    command = ["/bin/sh", "-c", 'exec "$0" -c "$1" ' + " ".join(closing[name] for name in lost if kind == "closed")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "stderr").open("wb") as stderr, lost_file(kind) as file:
        streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": stderr}
        if file is not None:
            streams |= dict.fromkeys(lost, file)
        done = subprocess.run([*command, sys.executable, code], cwd=folder, env=environment, check=False, **streams)
    return done.returncode, (folder / "stderr").read_text()


@contextmanager
def lost_file(kind: str) -> Iterator[int | None]:
    """Yield a descriptor of a full device, or of a pipe whose reader has left; None for neither."""
    if kind == "closed":
        yield None
        return
    if kind == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("lost", LOST, ids="-".join)
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_ends_with_its_own_exit_code(kind: str, lost: Sequence[str], tmp_path: Path) -> None:
    """Whoever writes: print, what is still buffered at the end, libraries that write to the descriptors, a subprocess.

    A file that is opened later must not get the number of a stream.
    """
    code = """
import os, subprocess, sys, warnings
from batchgen.console import echo, protect_console
protect_console()
with open("rows", "w") as file:
    assert file.fileno() > 2
    echo("a line")
    echo("a line", err=True)
    print("flushed", flush=True)
    warnings.warn("a warning")
    for stream in (sys.stdout, sys.stderr):
        assert stream.encoding and stream.fileno() in (1, 2)
        stream.writelines(["text"])
    os.write(1, b"by a library")
    subprocess.run(["/bin/sh", "-c", "echo from a child; echo and an error >&2"], check=True)
    file.write("rows")
print("buffered")
sys.exit(3)
"""
    returncode, stderr = run(code, tmp_path, kind, lost)
    assert returncode == 3, stderr
    assert (tmp_path / "rows").read_text() == "rows"


@pytest.mark.slow
@pytest.mark.parametrize("lost", LOST, ids="-".join)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("arguments", "exit_code"), [(["schema"], 0), (["status", "nowhere"], 2), (["run"], 2)])
def test_a_command_ends_with_its_own_exit_code(
    kind: str, lost: Sequence[str], arguments: list[str], exit_code: int, tmp_path: Path
) -> None:
    code = f"import sys; sys.argv[1:] = {arguments}; from batchgen.cli import main; main(prog_name='batchgen')"
    returncode, stderr = run(code, tmp_path, kind, lost)
    assert returncode == exit_code, stderr
    assert "Traceback" not in stderr
