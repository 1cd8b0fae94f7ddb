"""The loss worked out by hand, against torch's cross-entropy, and split into accumulated parts."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mt.config.load import config_from_mapping
from mt.data.tokens.batches import Update, collate
from mt.runtime.devices import Device, seed_everything
from mt.runtime.distributed import World
from mt.training import loss
from mt.training.loss import _chunk, batch_loss, smoothed_cross_entropy
from mt.training.update import Updater

N_TOKENS, WIDTH, VOCAB = 300, 8, 11
SIZES: dict[str, Any] = {
    "d_model": 8, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1, "d_ff": 16,
}  # fmt: skip
cross_entropy: Any = smoothed_cross_entropy  # with leaves, of which one may be None


@pytest.fixture(params=["one chunk", "many chunks"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss in one piece, or in pieces of 64 tokens (its smallest): 300 make 5, one short."""
    if request.param == "many chunks":
        monkeypatch.setattr(loss, "CHUNK_ELEMENTS", {"cpu": 1})


def inputs(bias: bool, scale: float = 1.0) -> Any:
    """hidden (N, D), weight (V, D), bias (V,) or None in float64, target (N,) with every word."""
    generator = torch.Generator().manual_seed(1)
    hidden = scale * torch.randn(N_TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    weight = torch.randn(VOCAB, WIDTH, generator=generator, dtype=torch.float64)
    b = torch.randn(VOCAB, generator=generator, dtype=torch.float64)
    target = torch.randint(0, VOCAB, (N_TOKENS,), generator=generator)
    assert len(target.unique()) == VOCAB
    for leaf in (hidden, weight, b):
        leaf.requires_grad_()
    return hidden, weight, b if bias else None, target


def torch_loss(h: Tensor, w: Tensor, b: Tensor | None, y: Tensor, smoothing: float) -> Tensor:
    scores = h @ w.t() if b is None else h @ w.t() + b
    return F.cross_entropy(scores, y, label_smoothing=smoothing, reduction="sum")


# --- by hand ----------------------------------------------------------------------------------


@pytest.mark.parametrize("grad_mode", [True, False])
def test_two_tokens_over_three_words_by_hand(grad_mode: bool) -> None:
    """The output matrix is the identity and hidden states are logarithms of the probabilities.

    Word 0 has 1/2 of (1/2, 1/4, 1/4), word 1 has 1/5 of (1/10, 1/5, 7/10):
        cost      = ln 2 + ln 5 = ln 10 = 2.302585
    Smoothed with 0.3, each of the three words has 0.1 of the target and the right one 0.7 besides:
        1st token = 0.7 ln 2 + 0.1 (ln 2 + ln 4 + ln 4) = 1.2 ln 2             = 0.831777
        2nd token = 0.7 ln 5 + 0.1 (ln 10 + ln 5 + ln 10/7)
                  = 0.7 * 1.609438 + 0.1 (2.302585 + 1.609438 + 0.356675)    = 1.553476
        cost      = 2.385253
    """
    rows = [[1 / 2, 1 / 4, 1 / 4], [1 / 10, 1 / 5, 7 / 10]]
    hidden = torch.tensor(rows, dtype=torch.float64).log()
    identity, target = torch.eye(3).double(), torch.tensor([0, 1])
    with torch.set_grad_enabled(grad_mode):
        plain = smoothed_cross_entropy(hidden, identity, None, target, 0.0)
        smooth = smoothed_cross_entropy(hidden, identity, None, target, 0.3)
    assert plain.smoothed.item() == pytest.approx(math.log(10), abs=1e-12)
    assert plain.nll.item() == pytest.approx(2.302585, abs=1e-6)
    assert smooth.nll.item() == pytest.approx(2.302585, abs=1e-6)
    assert smooth.smoothed.item() == pytest.approx(2.385253, abs=1e-6)


# --- against torch ----------------------------------------------------------------------------


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_torch_in_value_and_every_gradient(smoothing: float, bias: bool) -> None:
    hidden, weight, b, target = inputs(bias)
    wanted = [x for x in (hidden, weight, b) if x is not None]
    expected = torch_loss(hidden, weight, b, target, smoothing)
    nll = torch_loss(hidden, weight, b, target, 0.0)
    result = smoothed_cross_entropy(hidden, weight, b, target, smoothing)
    torch.testing.assert_close(result.smoothed, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(result.nll, nll.detach(), rtol=0, atol=1e-10)
    assert not result.nll.requires_grad
    grads = torch.autograd.grad(result.smoothed, wanted)
    torch.testing.assert_close(grads, torch.autograd.grad(expected, wanted), rtol=0, atol=1e-10)
    with torch.no_grad():
        without = smoothed_cross_entropy(hidden, weight, b, target, smoothing)
    assert not without.smoothed.requires_grad
    torch.testing.assert_close(without.smoothed, expected.detach(), rtol=0, atol=1e-10)
    torch.testing.assert_close(without.nll, nll.detach(), rtol=0, atol=1e-10)


def test_large_scores_stay_finite() -> None:
    """Scores in the hundreds, in float32: most right words are far beyond the reach of exp."""
    *leaves, target = inputs(bias=True, scale=200.0)
    hidden, weight, b = (x.detach().float().requires_grad_() for x in leaves if x is not None)
    result = smoothed_cross_entropy(hidden, weight, b, target, 0.1)
    expected = torch_loss(hidden, weight, b, target, 0.1)
    grads = torch.autograd.grad(result.smoothed, (hidden, weight, b))
    assert expected.item() > 87 * N_TOKENS  # on average past where exp(-x) is a float32
    assert math.isfinite(result.smoothed.item())
    for one, other in zip(grads, torch.autograd.grad(expected, (hidden, weight, b)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
    with torch.no_grad():  # exact where no gradient is asked for, as in validation
        exact = smoothed_cross_entropy(hidden, weight, b, target, 0.1)
    torch.testing.assert_close(exact.smoothed, expected.detach(), rtol=1e-5, atol=0)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("bias", [False, True])
def test_bfloat16_is_close_and_sums_in_float32(bias: bool) -> None:
    """Scores up to about 8 rounded to 8 binary digits are off by at most 8 * 2^-8 = 0.03 a token.

    The roundings are as often up as down: over 300 tokens their sum is within
    5 sqrt(300) * 0.03 / sqrt(3) = 1.6 of about 1,000 nats.
    """
    leaves = inputs(bias)
    target = leaves[3]
    exact_result = cross_entropy(*leaves, 0.1)
    wanted = [x for x in leaves[:3] if x is not None]
    exact = torch.autograd.grad(exact_result.smoothed, wanted)
    hidden = leaves[0].detach().bfloat16().requires_grad_()
    weight = leaves[1].detach().float().requires_grad_()
    b = leaves[2].detach().float().requires_grad_() if bias else None
    result = smoothed_cross_entropy(hidden, weight, b, target, 0.1)
    low_wanted = [x for x in (hidden, weight, b) if x is not None]
    low = torch.autograd.grad(result.smoothed, low_wanted)
    with torch.no_grad():
        without = smoothed_cross_entropy(hidden, weight, b, target, 0.1)
    assert result.smoothed.dtype == result.nll.dtype == without.smoothed.dtype == torch.float32
    assert abs(result.smoothed.item() - exact_result.smoothed.item()) < 1.6
    assert abs(result.nll.item() - exact_result.nll.item()) < 1.6
    assert abs(without.smoothed.item() - result.smoothed.item()) < 0.1
    low_weight = weight.detach().bfloat16()
    low_b = None if b is None else b.detach().bfloat16()
    # Nothing after the scores is rounded to 8 digits.
    scores = F.linear(hidden, low_weight, low_b).float()
    rounded_once = F.cross_entropy(scores, target, reduction="sum").item()
    assert result.nll.item() == pytest.approx(rounded_once, rel=1e-6)
    assert without.nll.item() == pytest.approx(rounded_once, rel=1e-6)
    for low_grad, grad, leaf in zip(low, exact, low_wanted, strict=True):
        assert low_grad.dtype == leaf.dtype
        error = (low_grad.double() - grad).norm() / grad.norm()
        assert error < 5 * 2**-8, error


class Largest(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation gives."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


@pytest.mark.parametrize("grad_mode", [True, False])
def test_scores_never_exist_all_at_once(grad_mode: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 tokens by 500 words in chunks of 100 tokens: 50,000 scores at a time, not 500,000."""
    monkeypatch.setattr(loss, "CHUNK_ELEMENTS", {"cpu": 50_000})
    hidden = torch.randn(1000, 8, requires_grad=grad_mode)
    weight = torch.randn(500, 8, requires_grad=grad_mode)
    target = torch.randint(0, 500, (1000,))
    with torch.set_grad_enabled(grad_mode), Largest() as largest:
        result = smoothed_cross_entropy(hidden, weight, None, target, 0.1)
        if grad_mode:
            result.smoothed.backward()
    assert largest.elements == 50_000


def test_the_settings_of_a_run_reach_its_loss() -> None:
    """`label_smoothing` and others in an update of two batches: the loss of both is summed."""
    sections = {
        "data": {"src_lang": "de", "tgt_lang": "en"},
        "model": {**SIZES, "dropout": 0.5},
        "optim": {"label_smoothing": 0.2},
    }
    side = SimpleNamespace(size=VOCAB)
    vocabulary: Any = SimpleNamespace(src=side, tgt=side, joint=True)
    config = config_from_mapping(sections, "test")
    device = Device(torch.device("cpu"), "fp32")
    updater = Updater(config, vocabulary, device, World(), lambda _: None)
    pairs = [(np.arange(4, 9), np.arange(5, 8)), (np.arange(6, 8), np.arange(4, 10))]
    batches = [collate([pair]) for pair in pairs]

    smoothed, nll = updater.accumulate_gradients(Update(0, 0, 1, batches, n_tgt=11), 3)
    made = [weight.grad for weight in updater.model.parameters()]
    updater.model.zero_grad()
    seed_everything(config.run.seed, 3, 0)  # of update 3 and rank 0
    model = updater.model
    parts = [batch_loss(model, model.output, batch, 0.2) for batch in batches]
    expected = (parts[0].smoothed + parts[1].smoothed) / 11
    torch.testing.assert_close(smoothed, expected.detach())
    torch.testing.assert_close(nll, (parts[0].nll + parts[1].nll) / 11)
    expected.backward()
    torch.testing.assert_close(made, [weight.grad for weight in updater.model.parameters()])


@pytest.mark.parametrize(("gigabytes", "tokens"), [(141, 33_554), (24, 11_718), (8, 3_906)])
def test_a_large_gpu_computes_all_logits_of_an_update_at_once(
    gigabytes: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """25,000 tokens, the default; a small GPU has no memory for them."""
    properties = SimpleNamespace(total_memory=gigabytes * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert _chunk(torch.device("cuda"), 32_000) == tokens


# --- float16 ----------------------------------------------------------------------------------


def test_the_sum_over_many_tokens_in_float16_does_not_overflow() -> None:
    """150,000 tokens, of which one word is 15 %: no loss scale could mend an infinite gradient."""
    torch.manual_seed(1)
    n, n_words, factor = 150_000, 16, 65536 / 25_000  # a loss scale, tokens of an update
    target = torch.randint(1, n_words, (n,))
    target[: n * 15 // 100] = 0
    weight = torch.randn(n_words, 8, dtype=torch.float64)
    hidden = (torch.randn(n, 8, dtype=torch.float64) / 10 + 4).half().double()
    found = []
    for h, w in ((hidden, weight), (hidden.half(), weight.float())):
        leaf = w.clone().requires_grad_()
        result = smoothed_cross_entropy(h.clone().requires_grad_(), leaf, None, target, 0.1)
        (result.smoothed * factor).backward()
        assert leaf.grad is not None
        found.append(leaf.grad.double() / factor)
    exact, low = found
    assert exact.abs().max() > torch.finfo(torch.float16).max
    assert (low - exact).norm() / exact.norm() < 2**-7
