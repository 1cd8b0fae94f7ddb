"""The CUDA code that torch.compile makes of a function, on a machine without a GPU.

Dynamo and AOTAutograd trace the function on the CPU, as autograd cannot follow CUDA tensors here.
Then the devices of the graph become cuda:0, and Inductor writes code for it. torch's build for CPUs
lacks two things for that. One is a device guard for CUDA, which `fake_gpu` compiles from two lines
of C++ and loads; the other is Triton, of which Inductor asks a few facts before it writes kernels
as text. So graphs, guards, kernels and dtypes are those of a GPU of compute capability 9.0; numbers
and speed are not to be had, and a mix of devices does not show.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._dynamo import device_interface
from torch._guards import detect_fake_mode
from torch.utils import _pytree as pytree
from torch.utils import _triton as triton_found
from torch.utils import cpp_extension

GPU = torch.device("cuda", 0)
GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace {
using c10::impl::NoOpDeviceGuardImpl;
NoOpDeviceGuardImpl<c10::DeviceType::CUDA> guard;
c10::impl::DeviceGuardImplRegistrar registered(c10::DeviceType::CUDA, &guard);
}
"""
# What Inductor asks about a GPU: those of an H200.
PROPERTIES = SimpleNamespace(
    name="NVIDIA H200", type="cuda", index=0, major=9, minor=0, multi_processor_count=132,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, total_memory=141 * 10**9,
    warp_size=32, gcnArchName="",
)  # fmt: skip


class NotRunError(Exception):
    """Generated code was called; it cannot run here."""


@dataclass(frozen=True)
class Code:
    """A generated module."""

    text: str

    @property
    def kernels(self) -> list[str]:
        """The names of the Triton kernels that it launches, in order."""
        return re.findall(r"^\s+(triton_\w+)\.run\(", self.text, re.MULTILINE)

    @property
    def casts(self) -> list[str]:
        """Those that only change dtypes and layouts."""
        only = re.compile(r"triton_poi_fused_((_to_copy|slice|view|t|transpose)_)*\d+")
        return [name for name in self.kernels if "_to_copy" in name and only.fullmatch(name)]

    @property
    def products(self) -> int:
        """How many matrix products of cuBLAS it calls."""
        return len(re.findall(r"extern_kernels\.\w*mm\(", self.text))

    @property
    def fallbacks(self) -> list[str]:
        """torch's own operators that it calls."""
        return re.findall(r"torch\.ops\.aten\.(\w+)\.\w+\(", self.text)


def load_guard(folder: Path) -> None:
    """Compile and load the device guard; skip the test where there is no C++ compiler."""
    if shutil.which("g++") is None:
        pytest.skip("no g++, with which the device guard for fake CUDA tensors is compiled")
    source, library = folder / "guard.cpp", folder / "guard.so"
    source.write_text(GUARD, encoding="utf-8")
    include = [f"-I{path}" for path in cpp_extension.include_paths()]
    link = f"-L{Path(torch.__file__).parent / 'lib'}"
    command: list[str | Path] = [
        "g++",
        "-shared",
        "-fPIC",
        "-std=c++20",
        *include,
        source,
        "-o",
        library,
        link,
        "-lc10",
    ]
    subprocess.run(command, check=True)
    ctypes.CDLL(str(library))


def gpu_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool
) -> Tensor:
    """`F.scaled_dot_product_attention` as a GPU takes it, which torch's CPU build cannot choose."""
    aten = torch.ops.aten
    if attn_mask is None:
        out: Tensor = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal)[0]
        return out
    aligned = F.pad(attn_mask, (0, 8 - attn_mask.size(-1) % 8))[..., : attn_mask.size(-1)]
    aligned = aligned.expand(q.size(0), q.size(1), q.size(2), k.size(2))
    out = aten._scaled_dot_product_efficient_attention(q, k, v, aligned, True, dropout_p, False)[0]
    return out


def _stand_in_for_cuda(patch: pytest.MonkeyPatch) -> None:
    """Answer what torch and Inductor ask about the current GPU."""
    patch.setattr(torch.cuda, "get_device_properties", lambda *_: PROPERTIES)
    patch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    patch.setattr(torch.cuda, "current_device", lambda: 0)
    interface = device_interface.CudaInterface
    for one in (interface, interface.Worker):
        patch.setattr(one, "get_device_properties", staticmethod(lambda *_: PROPERTIES))
    patch.setattr(interface, "is_bf16_supported", staticmethod(lambda **_: True))
    patch.setattr(interface, "get_compute_capability", staticmethod(lambda *_: 90))


def _stand_in_for_triton(patch: pytest.MonkeyPatch) -> None:
    """Let Inductor find a Triton, of which it reads no more than the names set here.

    Only while it writes code: Dynamo would look for all of Triton.
    """
    from torch._inductor import scheduler
    from torch._inductor import utils as inductor_utils
    from torch._inductor.codegen import triton as codegen

    package, language = ModuleType("triton"), ModuleType("triton.language")
    package.__spec__ = ModuleSpec("triton", None)
    package.__dict__.update(__version__="3.6", language=language)
    language.__dict__.update(dtype=type("dtype", (), {}))
    patch.setitem(sys.modules, "triton", package)
    patch.setitem(sys.modules, "triton.language", language)
    for module in (scheduler, triton_found, inductor_utils):
        for name in ("has_triton", "has_triton_package"):
            if hasattr(module, name):
                patch.setattr(module, name, lambda *_: True)
    for module in (inductor_utils, codegen):
        patch.setattr(module, "triton_version_uses_attrs_dict", lambda: True)
    version = inductor_utils.TritonAttrsDescriptorVersion.V4_DICT
    patch.setattr(inductor_utils, "get_triton_attrs_descriptor_version", lambda: version)
    patch.setattr(triton_found, "triton_hash_with_backend", lambda *_: "")


def _moved_to_gpu(graph: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """Set all devices of a graph to the GPU, and return its inputs there."""
    mode = detect_fake_mode(inputs)
    assert mode is not None

    def moved(value: Any) -> Any:
        if isinstance(value, Tensor):
            with mode:
                shape = value.size(), value.stride()
                return torch.empty_strided(*shape, dtype=value.dtype, device=GPU)
        return GPU if isinstance(value, torch.device) else value

    for node in graph.graph.nodes:
        node.args, node.kwargs = (fx.node.map_aggregate(x, moved) for x in (node.args, node.kwargs))
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(moved, node.meta["val"])
    graph.recompile()
    return [moved(value) for value in inputs]


def _keep_code(patch: pytest.MonkeyPatch, codes: list[Code]) -> None:
    """Keep what Inductor generates instead of loading it.

    It is imported here, where the test allows that it warns.
    """
    from torch._inductor import compile_fx
    from torch._inductor.graph import GraphLowering

    def call(_: object) -> None:
        raise NotRunError

    def keep(graph: GraphLowering) -> SimpleNamespace:
        with pytest.MonkeyPatch.context() as patch:
            _stand_in_for_triton(patch)
            generated: Any = graph.codegen()[0]
        codes.append(Code(getattr(generated, "value", generated)))
        return SimpleNamespace(call=call, __file__="", benchmark_compiled_module=None)

    generate = compile_fx.fx_codegen_and_compile

    def generate_for_gpu(
        graph: fx.GraphModule, inputs: Sequence[Any], *rest: Any, **named: Any
    ) -> Any:
        return generate(graph, _moved_to_gpu(graph, inputs), *rest, **named)

    patch.setattr(compile_fx, "fx_codegen_and_compile", generate_for_gpu)
    patch.setattr(GraphLowering, "compile_to_module", keep)


@contextmanager
def fake_gpu(folder: Path) -> Iterator[list[Code]]:
    """Inside, Inductor compiles for a GPU; gives the modules that it generates."""
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config

    load_guard(folder)
    codes: list[Code] = []
    with pytest.MonkeyPatch.context() as patch:
        _stand_in_for_cuda(patch)
        _keep_code(patch, codes)
        patch.setattr(F, "scaled_dot_product_attention", gpu_attention)
        torch._dynamo.reset()
        without_cache = inductor_config.patch(fx_graph_cache=False)
        with without_cache, functorch_config.patch(enable_autograd_cache=False):
            yield codes
        torch._dynamo.reset()
