"""The log on stderr: text for people, or one JSON object per line for programs. Knows formats; knows no event.

A record may carry an event's name and fields (`extra=event(...)`). docs/logging.md lists them all.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Literal

from batchgen.console import echo

LogFormat = Literal["text", "json"]


def event(name: str, **fields: Any) -> dict[str, Any]:
    """Make the `extra` of a log record that programs know by its event name; every field is a JSON value."""
    return {"event": name, "fields": fields}


def log_to_stderr(level: int, format: LogFormat = "text") -> None:
    """Send records of batchgen at `level` or above to stderr in this format."""
    handler = _EchoHandler()
    handler.setFormatter(_JsonFormatter() if format == "json" else _TextFormatter("batchgen: %(message)s"))
    logger = logging.getLogger("batchgen")
    logger.handlers = [handler]
    logger.setLevel(level)


def adopt_library_warnings() -> None:
    """Send what libraries warn of through the handler of `log_to_stderr`; call it once they are imported."""
    logging.captureWarnings(True)  # Python's own go to "py.warnings"
    for name in ("transformers", "huggingface_hub", "py.warnings"):
        logging.getLogger(name).handlers = [*logging.getLogger("batchgen").handlers]


class _EchoHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        echo(self.format(record), err=True)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Show an error without the prefix: its message names its source."""
        return record.getMessage() if record.levelno >= logging.ERROR else super().format(record)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        values = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "message"),
            "message": record.getMessage(),
        }
        return json.dumps({**values, **getattr(record, "fields", {})})
