"""What errors of torch mean, in the words of CUDA, cuBLAS, cuDNN, Triton and Inductor."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from messages import says
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._inductor.exc import InductorError

from mt.errors import DeviceFailedError, TooLittleMemoryError
from mt.runtime.devices import Device
from mt.runtime.failures import explain_failures, failure_kind

CPU = Device(torch.device("cpu"), "fp32")
DEBUG = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
MEMORY: list[Exception] = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total"),
    RuntimeError(f"CUDA error: out of memory{DEBUG}"),
    torch.AcceleratorError(f"CUDA error: out of memory{DEBUG}"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried to"),
    InductorError(torch.OutOfMemoryError("CUDA out of memory."), None),
]
DEVICE: list[Exception] = [
    torch.AcceleratorError(f"CUDA error: an illegal memory access was encountered{DEBUG}"),
    RuntimeError(f"CUDA error: device-side assert triggered{DEBUG}"),
    RuntimeError(f"CUDA error: invalid configuration argument{DEBUG}"),
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    RuntimeError("CUDA error: unspecified launch failure"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    InductorError(RuntimeError("Triton Error [CUDA]: misaligned address"), None),
]


def of_triton(name: str, text: str) -> Exception:
    """An error as Triton defines it, which is not installed here."""
    kind: Callable[[str], Exception] = type(
        name, (Exception,), {"__module__": "triton.runtime.errors"}
    )
    return kind(text)


COMPILER: list[Exception] = [
    InductorError(AssertionError("unexpected stride"), None),
    InductorError(FileNotFoundError("Python.h"), None),
    FailOnRecompileLimitHit("Hard failure due to fail_on_recompile_limit_hit"),
    of_triton("OutOfResources", "out of resource: shared memory, Required: 262144"),
    RuntimeError("Triton Error [CUDA]: device kernel image is invalid"),
]
OTHER: list[Exception] = [KeyError("a"), ValueError("CUDA error"), RuntimeError("size mismatch")]


@pytest.mark.parametrize(
    ("errors", "kind"),
    [(MEMORY, "memory"), (DEVICE, "device"), (COMPILER, "compiler"), (OTHER, "other")],
)
def test_each_message_is_of_its_kind(errors: list[Exception], kind: str) -> None:
    assert {str(error)[:60]: failure_kind(error) for error in errors} == {
        str(error)[:60]: kind for error in errors
    }


def test_an_assertion_of_generated_code_is_the_compilers() -> None:
    """It is a plain AssertionError; the module is the one that Inductor gives to its code."""
    module: Any = types.ModuleType("torch._inductor.runtime.compile_tasks.abc")
    exec("def call():\n    assert 7 == 8, 'expected size 7==8'", module.__dict__)
    with pytest.raises(AssertionError) as caught:
        module.call()
    assert failure_kind(caught.value) == "compiler"
    assert failure_kind(AssertionError("expected size 7==8")) == "other"


def test_a_training_is_told_what_to_do() -> None:
    for error in MEMORY[:-1]:
        remedy = r"Lower batch\.tokens_per_batch"
        with pytest.raises(TooLittleMemoryError, match=remedy), explain_failures(CPU):
            raise error
    for error in DEVICE:
        with pytest.raises(DeviceFailedError) as caught, explain_failures(CPU):
            raise error
        assert caught.value.exit_code == 75
        first = str(error).partition("\n")[0]
        assert says(str(caught.value), first, "run the same command again", "ECC", "--device")
        assert "compile" not in str(caught.value).replace(first, "")
    for error in [RuntimeError("size mismatch"), COMPILER[0]]:
        with pytest.raises(type(error)) as other, explain_failures(CPU):
            raise error
        assert other.value is error
