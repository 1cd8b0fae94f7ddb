"""The meaning of an error of torch: too little memory, a failed GPU, or a compiler that gave up."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeVar

import torch

from mt.errors import DeviceFailedError, TooLittleMemoryError, first_line
from mt.runtime.devices import Device
from mt.runtime.memory import peak_memory_mb, release_cached_memory

Failure = Literal["memory", "device", "compiler", "other"]
Item = TypeVar("Item")
Result = TypeVar("Result")

# In messages of CUDA, cuBLAS, cuDNN and torch's allocator for CPUs.
MEMORY_SIGNS = re.compile(
    "out of memory|_STATUS_ALLOC_FAILED|can't allocate memory|not enough memory|"
    "Storage size calculation overflowed"
)
# After most of these every further call to the GPU fails. Triton repeats CUDA's words.
DEVICE_SIGNS = re.compile(
    "CUDA (driver )?error|(CUBLAS|CUDNN)_STATUS|illegal (memory access|instruction)|"
    "misaligned address|device-side assert|launch failure|ECC error"
)
COMPILERS = ("torch._dynamo", "torch._inductor", "triton")


def failure_kind(error: BaseException) -> Failure:
    """Tell why torch failed: memory, the device, its compilers, or none of these."""
    # torch.compile wraps what happens while it compiles.
    if (inner := getattr(error, "inner_exception", None)) is not None:
        kind = failure_kind(inner)
        return "compiler" if kind == "other" else kind
    text = str(error) if isinstance(error, RuntimeError) else ""
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or MEMORY_SIGNS.search(text):
        return "memory"
    if DEVICE_SIGNS.search(text):
        return "device"
    return "compiler" if "Triton Error" in text or _is_of_compiler(error) else "other"


def _is_of_compiler(error: BaseException) -> bool:
    """Whether a compiler defines the error's type, or it or its generated code raised the error."""
    names = [kind.__module__ for kind in type(error).__mro__]
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names += [frame.f_globals.get("__name__") or "" for frame in frames[-1:]]
    return any(name.startswith(COMPILERS) for name in names)


def raise_unless_out_of_memory(error: BaseException) -> None:
    """Raise the error again, one of the device as DeviceFailedError, if it is not of memory."""
    kind = failure_kind(error)
    if kind == "device":
        raise DeviceFailedError(
            f"the GPU has failed ({first_line(error)}), and this process cannot use it any more. "
            "What is saved is intact: run the same command again to continue. If it fails again, "
            "`nvidia-smi -q -d ECC` shows whether its memory is defective; --device cuda:1 takes "
            "another GPU, and CUDA_LAUNCH_BLOCKING=1 in front of the command finds the operation"
        ) from error
    if kind != "memory":
        raise error


def in_halves(
    work: Callable[[Sequence[Item]], Result],
    items: Sequence[Item],
    device: torch.device,
    too_large: Callable[[Item], Exception],
) -> list[Result]:
    """Work on a batch; on its halves, and theirs, where it does not fit into the memory.

    Returns the results of the parts, in order. Raises what `too_large` makes of a single item that
    does not fit.
    """
    try:
        return [work(items)]
    except (MemoryError, RuntimeError) as error:  # torch's errors are RuntimeErrors
        raise_unless_out_of_memory(error)
        if len(items) == 1:
            raise too_large(items[0]) from error
    # Outside of `except`: the error holds on to the tensors of the failed work.
    release_cached_memory(device)
    half = len(items) // 2
    parts = (items[:half], items[half:])
    return [result for part in parts for result in in_halves(work, part, device, too_large)]


@contextmanager
def explain_failures(device: Device) -> Iterator[None]:
    """Turn errors while training into TooLittleMemoryError and DeviceFailedError, with a remedy."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's errors are RuntimeErrors
        raise_unless_out_of_memory(error)
        raise TooLittleMemoryError(
            f"the memory of {device} is too small: {peak_memory_mb(device.device):,.0f} MB were in "
            "use. Lower batch.tokens_per_batch (tokens_per_update keeps the training the same), or "
            "choose a smaller model"
        ) from error
