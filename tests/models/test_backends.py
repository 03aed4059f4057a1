from __future__ import annotations

from pathlib import Path

import numba
import pytest
import torch

from batchgen.errors import ModelError
from batchgen.models import backends
from batchgen.models.backends import choose_backend, make_backend, warm_up
from batchgen.models.probe import AttentionLayer
from batchgen_kernels import CpuBackend
from batchgen_kernels.cpu import attention


def layer(head_size: int) -> AttentionLayer:
    return AttentionLayer("attention", 4, 2, head_size, head_size, None)


CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("device", "installed", "head_size", "expected"),
    [(CPU, True, 64, "cpu"), (GPU, True, 256, "triton"), (GPU, True, 257, "torch"), (GPU, False, 64, "torch")],
    ids=["a CPU", "a GPU", "heads too large for Triton", "no Triton"],
)
def test_auto_takes_the_fastest_backend_that_runs_the_model(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, installed: bool, head_size: int, expected: str
) -> None:
    monkeypatch.setattr(backends, "has_triton", lambda: installed)
    assert choose_backend("auto", device, torch.bfloat16, [layer(64), layer(head_size)]) == expected


def test_the_reference_runs_everywhere() -> None:
    for device in (CPU, GPU):
        assert choose_backend("torch", device, torch.bfloat16, [layer(512)]) == "torch"


@pytest.mark.parametrize(
    ("wanted", "device", "interpreted", "head_size", "reason"),
    [
        ("cpu", GPU, False, 64, "cpu does not run on cuda:0; use auto or torch"),
        ("triton", CPU, False, 64, "triton runs on a GPU; use auto or cpu here"),
        ("triton", CPU, True, 64, "triton is computed wrongly in bfloat16"),
        ("triton", GPU, False, 512, "triton supports head sizes up to 256, but this model's is 512; use auto or torch"),
    ],
)
def test_a_backend_that_cannot_run_the_model_is_refused(
    monkeypatch: pytest.MonkeyPatch, wanted: str, device: torch.device, interpreted: bool, head_size: int, reason: str
) -> None:
    monkeypatch.setattr(backends, "is_triton_interpreted", lambda: interpreted)
    monkeypatch.setattr(backends, "has_triton", lambda: True)
    with pytest.raises(ModelError, match=f"^{reason}"):
        choose_backend(wanted, device, torch.bfloat16, [layer(head_size)])


def test_triton_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "has_triton", lambda: False)
    with pytest.raises(ModelError, match=r"^triton needs the package triton"):
        choose_backend("triton", GPU, torch.bfloat16, [layer(64)])


def test_the_kernels_are_compiled_when_the_block_ends() -> None:
    backend, num_threads = CpuBackend(), numba.get_num_threads()
    with warm_up(backend, layer(64), torch.float16):
        pass
    assert any("int16" in str(signature) for signature in attention.attend_tasks.signatures)
    assert numba.get_num_threads() == num_threads


@pytest.mark.parametrize("head_size", [8, 64])  # computed by the reference, and by the kernels
def test_warm_up_keeps_no_blocks(head_size: int) -> None:
    backend = CpuBackend()
    with warm_up(backend, layer(head_size), torch.float32):
        pass
    assert not backend._pools


@pytest.mark.parametrize("head_size", [8, 64])
def test_torchs_default_dtype_may_be_any(head_size: int) -> None:
    """transformers changes it for the whole process while it loads a model."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        with warm_up(CpuBackend(), layer(head_size), torch.bfloat16):
            pass
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_failure_inside_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="weights"), warm_up(CpuBackend(), layer(64), torch.float32):
        raise ValueError("weights")


@pytest.mark.parametrize(
    ("cache", "words"),
    [
        (Path("/first"), None),
        (Path("/home/me/.cache/batchgen"), "are kept in /home/me/.cache/batchgen, since /first cannot be used"),
        (None, "are compiled again by every run, since /first cannot be used"),
    ],
)
def test_the_folder_of_the_compiled_kernels_is_logged_unless_it_is_the_first_choice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cache: Path | None, words: str | None
) -> None:
    monkeypatch.setattr(CpuBackend, "preferred_cache", Path("/first"))
    monkeypatch.setattr(CpuBackend, "cache", cache)
    with caplog.at_level("INFO", "batchgen"), warm_up(CpuBackend(), layer(16), torch.float32):
        pass
    assert caplog.messages == ([] if words is None else [f"the CPU kernels {words}"])


def test_triton_keeps_its_kernels_elsewhere_if_it_cannot_write_to_its_own_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    knobs = pytest.importorskip("triton").knobs
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "file/cache"))
    make_backend("triton")
    assert knobs.cache.dir == str(tmp_path / "batchgen/triton")
