"""Work: the steps and seconds of all sessions of a run, noted in `.state/work.json` so that they outlive a kill."""

from __future__ import annotations

import json

from batchgen.errors import OutputError
from batchgen.io.folder import OutputFolder, written_whole
from batchgen.stats.counters import RunStats
from batchgen.stats.earlier import add_work, work_of
from batchgen.stats.stopwatch import Stopwatch


class Work:
    """Goes on from what earlier sessions noted. Raises OutputError where that cannot be read."""

    def __init__(self, folder: OutputFolder, watch: Stopwatch) -> None:
        self._path = folder.work_json
        self._watch = watch
        self._stats: RunStats | None = None
        self._earlier: dict[str, float] = {}
        if not self._path.exists():
            return
        try:
            noted = json.loads(self._path.read_text(encoding="utf-8"))
            self._earlier = noted["steps"]
            watch.go_on_from(noted["seconds"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OutputError(
                f"{self._path}: cannot be read: {error}; remove it to lose the times and steps of earlier sessions"
            ) from error

    def go_on(self, stats: RunStats) -> None:
        """Count the steps of earlier sessions too; `stats` is what is noted from here on."""
        add_work(stats, self._earlier)
        self._stats = stats

    def note(self) -> None:
        """Write down what has been done so far. Raises OutputError if the disk refuses."""
        if self._stats is None:
            return
        with written_whole(self._path) as temporary:
            noted = {"seconds": self._watch.seconds(), "steps": work_of(self._stats)}
            temporary.write_text(json.dumps(noted), encoding="utf-8")
