"""Decoding with caches gives what the whole decoder gives, run again for every prefix."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mt.config.schema import ModelConfig
from mt.data.tokens.tokenizer import BOS, EOS, PAD, UNK
from mt.model.transformer import Linear, Transformer
from mt.runtime import devices
from mt.runtime.devices import Device
from mt.search import inference
from mt.search.engine_contract import Hypothesis
from mt.search.inference import Inference, PrepackedLinear, SplitQueryKeyValue, can_pack
from mt.search.scoring import ForcedDecoder
from mt.search.search import Stepper, beam_search, greedy_search

VOCAB = 30
# Two doublings of the caches and a bit.
STEPS = 2 * inference.FIRST_STEPS + 8
# Largest difference of a log-probability.
TOLERANCE = {"fp32": 1e-5, "fp64": 1e-10}

SHAPES = pytest.mark.parametrize(
    "shape",
    [
        {"norm": "pre", "positions": "sinusoidal"},
        {"norm": "post", "positions": "learned"},
        {"norm": "pre", "positions": "learned", "attention_bias": False, "activation": "gelu"},
        {"norm": "post", "positions": "sinusoidal", "tie_embeddings": False, "output_bias": True},
    ],
    ids=lambda shape: "-".join(map(str, shape.values())),
)
PRECISIONS = pytest.mark.parametrize("precision", TOLERANCE)


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow float64, in which a wrong formula cannot pass for a rounding error."""
    monkeypatch.setitem(devices.DTYPES, "fp64", torch.float64)


def cpu(precision: str = "fp32") -> Device:
    return Device(torch.device("cpu"), precision)


def build(
    precision: str = "fp32", seed: int = 1, eos_bias: float = 0.0, **options: Any
) -> Transformer:
    """A small model; no bias is 0 and no gain 1, so that an unused one shows."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"d_model": 16, "n_heads": 2, "d_ff": 24, "max_positions": STEPS + 2}
    sizes |= {"n_encoder_layers": 1, "n_decoder_layers": 2, "output_bias": bool(eos_bias)}
    model = Transformer(ModelConfig(**{**sizes, **options}), VOCAB, VOCAB, joint=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(mean=float(name.endswith("norm.weight")), std=0.3)
        if not model.config.tie_embeddings:
            model.output.weight.mul_(3)  # as unlike each other as the logits of tied ones
        if model.output.bias is not None:
            model.output.bias.zero_()
            model.output.bias[EOS] = eos_bias
    return model.to(devices.DTYPES[precision]).eval()


def sentences(count: int = 5, longest: int = 9, seed: int = 2) -> tuple[Tensor, Tensor]:
    """Source ids (B, S) of different lengths, eos last, and their mask."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, longest + 1, (count, 1), generator=draw)
    lengths[0] = longest
    columns = torch.arange(longest)
    src = torch.randint(EOS + 1, VOCAB, (count, longest), generator=draw)
    src = src.masked_fill(columns == lengths - 1, EOS).masked_fill(columns >= lengths, PAD)
    return src, src != PAD


class Uncached:
    """A `Stepper` that remembers only the prefixes and runs the whole model on each of them."""

    def __init__(self, model: Transformer, src: Tensor, src_mask: Tensor, n: int) -> None:
        self.model, self.src, self.src_mask = model, src, src_mask
        self.prefixes = torch.zeros(len(src), n, 0, dtype=torch.int64)
        self.kept = 0

    @torch.no_grad()
    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        past = torch.take_along_dim(self.prefixes, parents[..., None], dim=1)  # (B, N, t)
        self.prefixes = torch.cat([past, tokens[..., None]], dim=2)
        n = tokens.shape[1]
        repeated = (
            self.src.repeat_interleave(n, 0),
            self.prefixes.flatten(0, 1),
            self.src_mask.repeat_interleave(n, 0),
        )
        logits: Tensor = self.model.output(self.model(*repeated)[:, -1])  # (B * N, V)
        return logits.view(*tokens.shape, -1)

    def keep(self, rows: Tensor) -> None:
        self.prefixes = self.prefixes[rows]
        self.src = self.src[rows]
        self.src_mask = self.src_mask[rows]
        self.kept += 1


def difference(one: Tensor, other: Tensor) -> float:
    """Logits may differ by a constant per hypothesis, log-probabilities may not."""
    return float((one.double().log_softmax(-1) - other.double().log_softmax(-1)).abs().max())


@pytest.mark.parametrize("n", [1, 4])
def test_caches_as_a_gpu_has_them(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Columns in multiples of 8, and memory that still holds what others left there: NaN."""
    real = Tensor.new_empty
    monkeypatch.setattr(
        Tensor, "new_empty", lambda self, *size, **given: real(self, *size, **given).fill_(math.nan)
    )
    monkeypatch.setitem(inference.COLUMNS, "cpu", inference.COLUMNS["cuda"])
    check_every_step({}, "fp32", n)


@pytest.mark.parametrize(("longest", "columns"), [(8, 8), (9, 16), (17, 20)])
def test_sources_as_a_gpu_reads_them(
    monkeypatch: pytest.MonkeyPatch, longest: int, columns: int
) -> None:
    """Padded to a multiple of 8, as far as there are positions; the hypotheses are the same."""
    model, (src, src_mask) = build(max_positions=20), sentences(longest=longest)
    limits = torch.full((len(src),), 12)

    def found() -> list[list[Hypothesis]]:
        return searched(Inference(model, cpu("fp32")).start(src, src_mask, 3), limits, 3)

    expected = found()
    shapes: list[torch.Size] = []
    real = Inference._encode

    def encode(self: Inference, src: Tensor, src_mask: Tensor) -> Tensor:
        shapes.append(src.shape)
        assert src.shape == src_mask.shape
        return real(self, src, src_mask)

    monkeypatch.setattr(Inference, "_encode", encode)
    monkeypatch.setitem(inference.COLUMNS, "cpu", inference.COLUMNS["cuda"])
    assert_same(found(), expected, 1e-4)
    assert shapes == [(len(src), columns)]


@SHAPES
@PRECISIONS
@pytest.mark.parametrize("n", [1, 4])
def test_every_step_gives_what_the_whole_decoder_gives(
    shape: dict[str, Any], precision: str, n: int
) -> None:
    check_every_step(shape, precision, n)


def check_every_step(shape: dict[str, Any], precision: str, n: int) -> None:
    """Random words, random parents, caches that grow twice, and sentences that leave on the way."""
    model, (src, src_mask) = build(precision, **shape), sentences()
    fast: Stepper = Inference(model, cpu(precision)).start(src, src_mask, n)
    slow: Stepper = Uncached(model, src, src_mask, n)
    draw = torch.Generator().manual_seed(3)
    leaving = {3: [0, 1, 3, 4], inference.FIRST_STEPS: [0, 2, 3], STEPS - 4: [1, 2]}
    rows = len(src)
    tokens, parents = torch.full((rows, n), BOS), torch.zeros(rows, n, dtype=torch.int64)
    for step in range(STEPS):
        error = difference(fast.step(tokens, parents), slow.step(tokens, parents))
        assert error < TOLERANCE[precision], step
        if step in leaving:
            kept = torch.tensor(leaving[step])
            fast.keep(kept)
            slow.keep(kept)
            rows = len(kept)
        tokens = torch.randint(EOS + 1, VOCAB, (rows, n), generator=draw)
        parents = torch.randint(0, n, (rows, n), generator=draw)


def searched(stepper: Stepper, limits: Tensor, beam_size: int) -> list[list[Hypothesis]]:
    if beam_size == 1:
        return list(greedy_search(stepper, limits, length_penalty=1.0))
    options: dict[str, Any] = {"beam_size": beam_size, "n_best": beam_size}
    return list(beam_search(stepper, limits, length_penalty=1.0, **options))


def assert_same(
    found: list[list[Hypothesis]], expected: list[list[Hypothesis]], tolerance: float
) -> None:
    for row, other in zip(found, expected, strict=True):
        assert [one.tokens for one in row] == [one.tokens for one in other]
        log_probs = pytest.approx([one.log_prob for one in other], abs=tolerance)
        assert [one.log_prob for one in row] == log_probs


def test_logits_of_a_bf16_model_are_not_rounded_to_bf16() -> None:
    """They are the products of what the decoder gives, in decoding and scoring."""
    model, (src, src_mask) = build(), sentences()
    decoder = ForcedDecoder(Inference(model, cpu("bf16")))
    norm = decoder.inference.model.decoder_norm
    weight = model.output.weight.bfloat16().double()
    hidden: list[Tensor] = []
    norm.register_forward_hook(lambda *given: hidden.append(given[-1]))
    stepper = decoder.inference.start(src, src_mask, 1)
    first = torch.full((len(src), 1), BOS)
    logits = stepper.step(first, torch.zeros_like(first))
    assert (logits.dtype, hidden[0].dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(logits.double(), hidden[0].double() @ weight.t(), rtol=0, atol=1e-5)
    (forced,) = decoder.log_probs([([9, 10], [11, 12])])
    expected = (hidden[1].double() @ weight.t()).log_softmax(-1)[0, range(3), [11, 12, EOS]]
    assert forced == pytest.approx(expected.tolist(), abs=1e-4)


@SHAPES
@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_whole_search_finds_the_same_hypotheses(shape: dict[str, Any], beam_size: int) -> None:
    shape = shape | {"output_bias": True}
    src, src_mask = sentences(count=12)
    limits = torch.randint(4, STEPS, (12,), generator=torch.Generator().manual_seed(4))
    lengths, left = set(), 0
    for seed in (1, 2):
        model = build("fp64", seed=seed, eos_bias=2.5, **shape)
        slow = Uncached(model, src, src_mask, beam_size)
        fast = Inference(model, cpu("fp64")).start(src, src_mask, beam_size)
        expected = searched(slow, limits, beam_size)
        # The search adds up in float32.
        assert_same(searched(fast, limits, beam_size), expected, 1e-5)
        lengths |= {len(row[0].tokens) for row in expected}
        left += slow.kept
    # Otherwise nothing was tested: sentences of one length, none of which left before the others.
    assert len(lengths) > 3
    assert left > 0


def test_as_many_steps_as_the_model_has_positions() -> None:
    model, (src, src_mask) = build(output_bias=True, eos_bias=-50.0, max_positions=20), sentences()
    ready = Inference(model, cpu())
    assert ready.max_tokens == 20
    limits = torch.full((5,), ready.max_tokens - 1)  # bos takes the first position
    for beam_size in (1, 3):
        found = searched(ready.start(src, src_mask, beam_size), limits, beam_size)
        assert {len(row[0].tokens) for row in found} == {19}
        assert all(token not in (PAD, UNK, BOS, EOS) for row in found for token in row[0].tokens)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
@pytest.mark.parametrize("training", [False, True])
def test_the_model_itself_is_unchanged(precision: str, training: bool) -> None:
    """Validation decodes in the middle of training, which then continues with the same model."""
    model, (src, src_mask) = build(dropout=0.5).train(training), sentences()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    places = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    ready = Inference(model, cpu(precision))
    searched(ready.start(src, src_mask, 2), torch.full((5,), 5), 2)
    assert all(module.training == training for module in model.modules())
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32
        assert parameter.requires_grad
        assert parameter.data_ptr() == places[name]  # an optimiser holds on to these
        assert torch.equal(parameter, before[name])
    # No tensor of inference mode is left in it: such a tensor cannot have a gradient.
    loss = model.output(model(src, src, src_mask)).float().square().mean()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("compute", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_in_training_decodes_in_the_precision_of_the_device(
    precision: str, compute: torch.dtype | None
) -> None:
    """Without its dropouts, whatever it computes in itself; bf16 differs by its rounding."""
    kinds = ("dropout", "attention_dropout", "activation_dropout")
    dropouts: dict[str, Any] = dict.fromkeys(kinds, 0.5)
    model, (src, src_mask) = build(**dropouts).train(), sentences()
    model.compute_dtype = compute
    first = torch.full((5, 1), BOS), torch.zeros(5, 1, dtype=torch.int64)
    logits = Inference(model, cpu(precision)).start(src, src_mask, 1).step(*first)
    assert logits.dtype == torch.float32
    assert model.compute_dtype == compute
    error = difference(logits, Uncached(build(dropout=0.0), src, src_mask, 1).step(*first))
    assert error < 1e-5 if precision == "fp32" else 0 < error < 0.1


# --- prepacked linear layers ----------------------------------------------------------------------


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
