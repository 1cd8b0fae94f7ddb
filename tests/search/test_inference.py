"""Decoding with caches gives what the whole decoder gives, run again for every prefix."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mt.config.schema import ModelConfig
from mt.data.tokens.tokenizer import BOS, EOS, PAD, UNK
from mt.model.transformer import Transformer
from mt.runtime import devices
from mt.runtime.devices import Device
from mt.search import inference
from mt.search.engine_contract import Hypothesis
from mt.search.inference import Inference
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


@SHAPES
@PRECISIONS
@pytest.mark.parametrize("n", [1, 4])
def test_each_step_is_that_of_the_decoder(shape: dict[str, Any], precision: str, n: int) -> None:
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
    model.output(model(src, src, src_mask)).float().square().mean().backward()
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
