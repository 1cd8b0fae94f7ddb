"""Prepacked linear layers against plain ones, int8 layers against a NumPy restatement."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Mt
from messages import says
from torch import Tensor

from mt.config.schema import ModelConfig
from mt.data.tokens.tokenizer import BOS
from mt.model.transformer import Linear, Transformer
from mt.runtime import devices
from mt.runtime.devices import Device
from mt.search.cpu_linear import Int8Linear, PrepackedLinear, SplitQueryKeyValue, can_pack, pack
from mt.search.inference import Inference

needs_int8 = pytest.mark.skipif(not devices.has_int8(), reason="this CPU has no int8 products")
needs_packing = pytest.mark.skipif(
    not can_pack(torch.float32), reason="this torch cannot prepack matrices"
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def restated(x: Tensor, weight: Tensor, bias: Tensor | None) -> np.ndarray:
    """The definition in float64: each row of x and of W is rounded to 127ths of its maximum."""
    parts = []
    for matrix in (x.double().numpy(), weight.double().numpy()):
        unit = np.abs(matrix).max(1, keepdims=True) / 127
        parts.append((np.rint(matrix / np.where(unit == 0, 1, unit)), unit))
    (codes, unit), (weight_codes, weight_unit) = parts
    product = (codes @ weight_codes.T) * unit * weight_unit.T
    return product if bias is None else product + bias.double().numpy()


@needs_int8
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("rows", "k", "n"), [(1, 16, 8), (7, 64, 30), (40, 256, 100)])
def test_int8_is_what_its_definition_says(rows: int, k: int, n: int, with_bias: bool) -> None:
    x, weight = drawn(rows, k) * 3, drawn(n, k, seed=1)
    bias = drawn(n, seed=2) if with_bias else None
    found = Int8Linear(weight, bias)(x)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), restated(x, weight, bias), rtol=1e-5, atol=1e-4)
    rounding = (found - torch.nn.functional.linear(x, weight, bias)).norm() / found.norm()
    assert 0 < float(rounding) < 0.02


@needs_int8
def test_int8_sums_do_not_overflow() -> None:
    """All codes at their maximum: kernels that add pairs of products in int16 would saturate."""
    for sign in (1.0, -1.0):
        found = Int8Linear(torch.full((8, 1024), 1.0), None)(torch.full((3, 1024), sign))
        assert found.flatten().tolist() == pytest.approx([1024 * sign] * 24, rel=1e-6)


@needs_int8
def test_a_row_of_int8_does_not_depend_on_the_others() -> None:
    x = drawn(40, 64) * torch.logspace(-3, 3, 40).unsqueeze(1)
    product = Int8Linear(drawn(50, 64, seed=1), drawn(50, seed=2))
    together = product(x)
    for size in (1, 3, 16):
        assert torch.equal(torch.cat([product(part) for part in x.split(size)]), together)
    assert torch.equal(product(x.view(5, 8, 64)), together.view(5, 8, 50))


@needs_int8
def test_rows_of_zeros_and_rows_with_nan() -> None:
    x = drawn(3, 64)
    x[0], x[1, 5] = 0, torch.nan
    bias = drawn(8, seed=2)
    found = Int8Linear(torch.cat([drawn(7, 64, seed=1), torch.zeros(1, 64)]), bias)(x)
    assert torch.equal(found[0], bias)
    assert bool(found[1].isnan().all())
    assert bool(found[2].isfinite().all())
    assert found[2, 7] == bias[7]


@needs_packing
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_prepacked_matrix_gives_the_same_product(dtype: torch.dtype, with_bias: bool) -> None:
    if not can_pack(dtype):
        pytest.skip(f"no {dtype} here")
    weight = drawn(50, 64, seed=1).to(dtype)
    bias = drawn(50, seed=2).to(dtype) if with_bias else None
    product = PrepackedLinear(weight, bias)
    for shape in ((1, 64), (7, 1, 64), (3, 11, 64), (200, 64)):
        x = drawn(*shape).to(dtype)
        found = product(x)
        assert found.dtype == dtype
        # Sums of 64 products in float32, whose rounding errors grow as a random walk in whatever
        # order (Higham and Mary, 2019), rounded to the dtype.
        values = x.double(), weight.double(), torch.zeros(50) if bias is None else bias
        exact, size = (
            torch.nn.functional.linear(*(f(v.double()) for v in values))
            for f in (torch.clone, torch.abs)
        )
        bound = (8 * torch.finfo(torch.float32).eps + torch.finfo(dtype).eps) * size
        assert bool(((found.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(PrepackedLinear, marks=needs_packing),
        pytest.param(Int8Linear, marks=needs_int8),
    ],
)
def test_a_pickled_layer_gives_the_same_product(kind: type[PrepackedLinear | Int8Linear]) -> None:
    """As it is sent to another process."""
    layer, x = kind(drawn(50, 64, seed=1), drawn(50, seed=2)), drawn(7, 64)
    copied = pickle.loads(pickle.dumps(layer))
    torch.testing.assert_close(copied(x), layer(x), rtol=1e-5, atol=1e-5)


def test_a_dtype_that_cannot_be_packed_is_left_alone() -> None:
    assert not can_pack(torch.float64)
    model = small().double()
    pack(model, "fp64")
    assert type(model.output) is Linear


def small() -> Transformer:
    torch.manual_seed(1)
    config = ModelConfig(
        d_model=32, n_heads=2, d_ff=64, n_encoder_layers=2, n_decoder_layers=2, max_positions=20
    )
    return Transformer(config, 40, 40, joint=True).eval()


@pytest.mark.parametrize(
    ("precision", "kind", "tolerance"),
    [
        pytest.param("fp32", PrepackedLinear, 1e-5, marks=needs_packing),
        pytest.param("int8", Int8Linear, 0.2, marks=needs_int8),
    ],
)
def test_every_linear_layer_of_a_model_is_replaced(
    precision: str, kind: type, tolerance: float
) -> None:
    model = small()
    ready = Inference(model, Device(torch.device("cpu"), precision))
    assert not any(isinstance(module, Linear) for module in ready.model.modules())
    n_products = sum(isinstance(module, kind) for module in ready.model.modules())
    # Four in an encoder layer; six in a decoder layer, one of them split in two; the output.
    assert n_products == 2 * 4 + 2 * 7 + 1
    assert sum(isinstance(module, SplitQueryKeyValue) for module in ready.model.modules()) == 2
    assert any(isinstance(module, Linear) for module in model.modules())  # the original is intact
    src = torch.randint(4, 40, (6, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(src, dtype=torch.bool)
    first = torch.full((6, 1), BOS), torch.zeros(6, 1, dtype=torch.long)
    found = ready.start(src, mask, 1).step(*first)
    with torch.no_grad():
        expected = model.output(model(src, first[0], mask))
    assert found.dtype == torch.float32
    assert 0 <= float((found - expected).abs().max()) < tolerance


@needs_int8
def test_int8_translates_as_fp32_does(mt: Mt, tiny_run: Path, tiny_corpus: Path) -> None:
    arguments = ["translate", "-m", tiny_run, tiny_corpus / "train.src", "--workers", 1]
    exact, rounded, again = (
        mt(*arguments, "--beam-size", 1, *options).lines
        for options in (
            ["--precision=fp32"],
            ["--precision=int8"],
            ["--precision=int8", "--batch-tokens=300"],
        )
    )
    n = len(exact)
    assert 0 < sum(one != other for one, other in zip(exact, rounded, strict=True)) < 0.1 * n
    assert sum(one != other for one, other in zip(rounded, again, strict=True)) <= 0.001 * n


def test_int8_without_support_falls_back_to_fp32_with_a_warning(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "has_int8", lambda: False)
    arguments = ["translate", "-m", tiny_run, tiny_corpus / "test.src", "--workers", 1]
    exact, rounded = (
        mt(*arguments, "--engine", "torch", "--precision", name) for name in ("fp32", "int8")
    )
    assert rounded.lines == exact.lines
    assert says(rounded.err.split("\n")[0], "int8", "VNNI", "fp32")
