"""The output folder: what is refused, what is removed, and that files are written atomically."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from pathlib import Path

import pytest

from batchgen.errors import InputError, OutputError
from batchgen.io.output.atomic import _warn_of_no_fsync, atomic_write
from batchgen.io.output.folder import OutputFolder


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def earlier_run(folder: Path) -> None:
    for name in ("completions/part-00000.parquet", "stats/job.parquet", ".state/journal/chunk-000000.parquet"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("old")
    for name in ("report.json", "report.html", "job.yaml", "_SUCCESS"):
        (folder / name).write_text("old")


def test_check_changes_nothing(tmp_path: Path) -> None:
    OutputFolder(tmp_path / "a" / "b").check([])
    assert not (tmp_path / "a").exists()


def test_the_folder_and_its_parents_are_made(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path / "a" / "b")
    folder.claim()
    folder.begin("{}")
    assert folder.completions.is_dir()
    assert folder.journal.is_dir()


def test_of_two_runs_that_start_at_once_one_is_refused(tmp_path: Path) -> None:
    first, second = OutputFolder(tmp_path), OutputFolder(tmp_path)
    first.check([])
    second.check([])
    first.claim()
    with pytest.raises(OutputError, match=rf"process {os.getpid()} on {re.escape(socket.gethostname())} is running"):
        second.claim()


def test_a_refused_run_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path / "out")

    def refused() -> None:
        with folder.claimed():
            raise InputError("damaged")

    with pytest.raises(InputError):
        refused()
    assert list(folder.path.iterdir()) == []


def test_a_folder_with_only_foreign_files_is_fine(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    OutputFolder(tmp_path).check([])


@pytest.mark.parametrize("sign", ["_SUCCESS", "completions", "report.json"])
def test_another_run_is_refused_with_advice(tmp_path: Path, sign: str) -> None:
    (tmp_path / sign).mkdir()
    with pytest.raises(OutputError, match=rf"({sign}).*output\.overwrite: true"):
        OutputFolder(tmp_path).check([])
    OutputFolder(tmp_path, overwrite=True).check([])


def test_a_run_that_generated_nothing_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".state/journal").mkdir(parents=True)
    (tmp_path / ".state/journal/chunk-000000.parquet").write_text("old")
    folder = OutputFolder(tmp_path)
    folder.check([])
    folder.claim()
    assert list(folder.journal.iterdir()) == []


def test_resume_keeps_complete_files(tmp_path: Path) -> None:
    for name in ("run.json", "tokens.bin", "journal/chunk-000000.parquet", "journal/.chunk-000001.parquet.tmp"):
        (tmp_path / ".state" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ".state" / name).write_text("old")
    folder = OutputFolder(tmp_path)
    folder.check([], is_known=True)
    with folder.claimed(resume=True):
        assert names_in(tmp_path / ".state") == ["journal/chunk-000000.parquet", "lock", "run.json"]
    assert names_in(tmp_path / ".state") == ["journal/chunk-000000.parquet", "run.json"]


def test_a_run_that_began_after_check_is_not_touched(tmp_path: Path) -> None:
    late, first = OutputFolder(tmp_path, overwrite=True), OutputFolder(tmp_path)
    late.check([])
    with first.claimed():
        first.begin("{}")
    with pytest.raises(OutputError, match="another run has just used this folder"):
        late.claim()
    assert first.run_json.exists()


def test_overwrite_removes_only_own_files_and_only_at_begin(tmp_path: Path) -> None:
    earlier_run(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    folder = OutputFolder(tmp_path, overwrite=True)
    folder.check([])
    folder.claim()
    assert {"report.json", "_SUCCESS"} <= set(names_in(tmp_path))
    folder.begin("{}")
    assert names_in(tmp_path) == [".state/lock", ".state/run.json", "notes.txt"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_job_file_of_the_user_is_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "job.yaml").write_text("mine")
    with pytest.raises(OutputError, match=r"job\.yaml: not written by batchgen"):
        OutputFolder(tmp_path, overwrite).check([])


def test_foreign_files_among_the_parts_are_refused(tmp_path: Path) -> None:
    earlier_run(tmp_path)
    (tmp_path / "completions" / "mine.parquet").write_text("mine")
    with pytest.raises(OutputError, match=r"mine\.parquet: not written by batchgen"):
        OutputFolder(tmp_path, overwrite=True).check([])


def test_parts_of_the_other_format_are_replaced_with_the_rest(tmp_path: Path) -> None:
    earlier_run(tmp_path)
    (tmp_path / "completions" / "part-00001.jsonl").write_text("{}")
    folder = OutputFolder(tmp_path, overwrite=True)
    folder.check([])
    with folder.claimed():
        folder.begin("{}")
    assert list(folder.completions.iterdir()) == []


@pytest.mark.parametrize("spelling", ["in.parquet", "x/../in.parquet", "link.parquet"])
def test_output_that_is_the_input_is_refused(tmp_path: Path, spelling: str) -> None:
    (tmp_path / "in.parquet").write_text("data")
    (tmp_path / "x").mkdir()
    (tmp_path / "link.parquet").symlink_to("in.parquet")
    with pytest.raises(OutputError, match=r"output\.path is the file .*in\.parquet that the job reads"):
        OutputFolder(tmp_path / spelling, overwrite=True).check([tmp_path / "in.parquet"])


def test_output_that_holds_the_input_is_refused_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "out" / "completions").mkdir(parents=True)
    (tmp_path / "out" / "completions" / "part-00000.parquet").write_text("data")
    (tmp_path / "in").symlink_to("out", target_is_directory=True)
    with pytest.raises(OutputError, match="which the job reads"):
        OutputFolder(tmp_path / "out", overwrite=True).check([tmp_path / "in" / "completions" / "part-00000.parquet"])


def test_a_file_where_a_folder_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match="file is a file"):
            OutputFolder(path).check([])


def test_folder_that_is_not_writable_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere, whatever the mode
    with pytest.raises(OutputError, match="is not writable"):
        OutputFolder(tmp_path / "new").check([])


def test_text_is_replaced_atomically(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path)
    folder.write_text("report.json", "old")
    folder.write_text("report.json", "é")
    assert names_in(tmp_path) == ["report.json"]
    assert folder.report_json.read_bytes() == "é".encode()


def test_failed_write_leaves_only_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def write_half() -> None:
        with atomic_write(path) as temporary:
            temporary.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match=r"report\.json: cannot be written: No space left on device"):
        write_half()
    assert (names_in(tmp_path), path.read_text()) == (["report.json"], "old")


def fail_fsync(monkeypatch: pytest.MonkeyPatch, number: int, *, of_folders: bool, of_files: bool) -> None:
    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if of_folders if is_folder else of_files:
            raise OSError(number, os.strerror(number))

    _warn_of_no_fsync.cache_clear()
    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("name", ["EINVAL", "ENOTSUP", "EOPNOTSUPP", "ENOSYS"])
@pytest.mark.parametrize("kinds", [["folders"], ["files", "folders"]], ids=lambda kinds: "-".join(kinds))
def test_a_file_system_without_fsync_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, kinds: list[str]
) -> None:
    number = getattr(errno, name)
    fail_fsync(monkeypatch, number, of_folders=True, of_files="files" in kinds)
    folder = OutputFolder(tmp_path)
    folder.write_text("a.json", "1")
    folder.write_text("b.json", "2")
    assert names_in(tmp_path) == ["a.json", "b.json"]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * len(kinds)
    for kind, message in zip(kinds, caplog.messages, strict=True):
        assert f"cannot flush {kind} to the disk (fsync: {os.strerror(number)}); a power loss may lose" in message


@pytest.mark.parametrize("name", ["EIO", "ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("of_files", [True, False])
def test_a_failing_disk_is_no_file_system_without_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, of_files: bool
) -> None:
    number = getattr(errno, name)
    fail_fsync(monkeypatch, number, of_folders=not of_files, of_files=of_files)
    with pytest.raises(OutputError, match=f"cannot be written: {os.strerror(number)}"):
        OutputFolder(tmp_path).write_text("a.json", "1")


def take_over(folder: OutputFolder) -> None:
    """Let another run take the folder, as it may after this one was silent for two minutes."""
    folder.lock.path.unlink()
    OutputFolder(str(folder.path)).lock.acquire()


def test_a_run_that_lost_its_folder_ends_without_touching_it(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path)
    folder.claim()
    folder.begin("{}")
    take_over(folder)
    before = names_in(tmp_path)
    with pytest.raises(OutputError, match="another run has taken over this folder"):
        folder.mark_success()
    assert names_in(tmp_path) == before


def test_a_refused_run_that_lost_its_folder_leaves_it(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path)
    with folder.claimed():
        take_over(folder)
        (tmp_path / ".state/run.json").write_text("theirs")
    assert names_in(tmp_path) == [".state/lock", ".state/run.json"]


def test_files_by_which_another_run_tries_the_lock_are_kept(tmp_path: Path) -> None:
    (tmp_path / ".state").mkdir()
    new, old = tmp_path / ".state/.lock.1.tmp", tmp_path / ".state/.lock.2.tmp"
    new.touch()
    old.touch()
    os.utime(old, (1, 1))
    OutputFolder(tmp_path).claim()
    assert (new.exists(), old.exists()) == (True, False)


def test_mark_success_removes_the_state(tmp_path: Path) -> None:
    folder = OutputFolder(tmp_path)
    folder.claim()
    folder.begin("{}")
    folder.mark_success()
    assert folder.success.exists()
    assert not folder.state.exists()
