"""Prepacked linear layers against plain ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mt.config.schema import ModelConfig
from mt.data.tokens.tokenizer import BOS
from mt.model.transformer import Linear, Transformer
from mt.runtime.devices import Device
from mt.search.cpu_linear import PrepackedLinear, SplitQueryKeyValue, can_pack, pack
from mt.search.inference import Inference

needs_packing = pytest.mark.skipif(
    not can_pack(torch.float32), reason="this torch cannot prepack matrices"
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


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


def test_a_dtype_that_cannot_be_packed_is_left_alone() -> None:
    assert not can_pack(torch.float64)
    model = small().double()
    pack(model)
    assert type(model.output) is Linear


def small() -> Transformer:
    torch.manual_seed(1)
    config = ModelConfig(
        d_model=32, n_heads=2, d_ff=64, n_encoder_layers=2, n_decoder_layers=2, max_positions=20
    )
    return Transformer(config, 40, 40, joint=True).eval()


@needs_packing
def test_every_linear_layer_of_a_model_is_replaced() -> None:
    model = small()
    ready = Inference(model, Device(torch.device("cpu"), "fp32"))
    assert not any(isinstance(module, Linear) for module in ready.model.modules())
    n_products = sum(isinstance(module, PrepackedLinear) for module in ready.model.modules())
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
    assert 0 <= float((found - expected).abs().max()) < 1e-5
