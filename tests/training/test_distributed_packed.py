"""Two ranks without padding, compiled, over gloo."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from packed_rows import DATA, SMALL, attend_each
from processes import run_ranks
from token_stores import store_of_lengths
from torch import Tensor

from mt.config.load import config_from_mapping
from mt.data.tokens.batches import shard_of
from mt.data.tokens.loader import Update
from mt.data.tokens.plan import Plan
from mt.model.packed import load_varlen_attn
from mt.runtime.devices import choose_device
from mt.runtime.distributed import World, process_group, world_from_environment
from mt.training import compilation, update
from mt.training.update import Updater

pytestmark = pytest.mark.usefixtures("no_process_left")

STORE = store_of_lengths([5, 1, 12, 2, 7, 3, 9, 4], [3, 9, 1, 2, 8, 4, 5, 6])
VOCABULARY = 100  # STORE has 83 tokens, each another


def attend_on_cpu() -> None:
    """Give torch's operator of attention without padding a kernel for CPUs."""
    from torch.nn.attention import varlen

    def attend(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        *lengths, window = *rest[:4], tuple(rest[-1])
        return attend_each(q, k, v, *lengths, window_size=window)  # type: ignore[arg-type]

    def forward(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
        q, *_ = given
        lse = q.new_zeros(q.shape[1], len(q))
        return attend(*given[:7], given[9]), lse, torch.zeros(2, dtype=torch.uint64)

    def differentiate(grad: Tensor, *given: Any) -> tuple[Tensor, ...]:
        inputs = [part.detach().requires_grad_() for part in given[:3]]
        return torch.autograd.grad(attend(*inputs, *given[5:9], given[12]), inputs, grad)

    def backward(*given: Any) -> tuple[Tensor, ...]:
        return elsewhere.submit(differentiate, *given).result()

    elsewhere = ThreadPoolExecutor(1)  # an operator's own thread has no autograd

    varlen._varlen_attn.register_kernel("cpu", forward)
    varlen._varlen_attn_backward.register_kernel("cpu", backward)


def compare_gradients() -> None:
    """Compare the gradients of updates, shared by all ranks, with those that this one computes."""
    model = SMALL | {"dropout": 0.0, "n_encoder_layers": 1, "n_decoder_layers": 1}
    config = config_from_mapping(DATA | {"model": model}, "test")
    tokenizer: Any = SimpleNamespace(src=SimpleNamespace(size=VOCABULARY), joint=True)
    tokenizer.tgt = tokenizer.src
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update, "can_pack", lambda *_: True)
        patch.setattr(compilation, "BACKEND", "aot_eager")
        assert load_varlen_attn()
        attend_on_cpu()
        with process_group(world_from_environment(), on_gpu=False) as world:
            device = choose_device("cpu", "fp32")
            alone, together = (
                Updater(config, tokenizer, device, each, print) for each in (World(), world)
            )
            together.forward = compilation.compile_for_all_shapes(together.model)
            plan = Plan(STORE, [1.0], config.batch, 1, packed=True)
            # Two micro-batches for each rank; one; then rank 1 has none.
            for sentences in ([[0, 1], [2, 3], [4, 5], [6, 7]], [[2, 3, 4]], [[6]], [[0, 1, 7]]):
                batches = [np.array(part) for part in sentences]
                expected = gradients(alone, *shard_of(plan, batches))
                shared = gradients(together, *shard_of(plan, batches, world.rank, world.size))
                torch.testing.assert_close(shared, expected, rtol=1e-4, atol=1e-6)
            print(compilation.n_compiled_graphs())


def gradients(updater: Updater, batches: list[Any], n_tgt: int) -> list[Tensor | None]:
    updater.optimizer.zero_grad(set_to_none=True)
    updater.accumulate_gradients(Update(0, 0, 1, batches, n_tgt), 0)
    return [weight.grad for weight in updater.model.parameters()]


@pytest.mark.slow
@pytest.mark.skipif(not load_varlen_attn(), reason="torch 2.11 has varlen_attn")
def test_compiled_ranks_have_the_gradients_of_one(tmp_path: Path) -> None:
    done = run_ranks(tmp_path, [], compare_gradients, seconds=200)
    assert [rank.code for rank in done] == [0, 0], done[0].err + done[1].err
    assert [rank.out for rank in done] == [b"1\n", b"1\n"]  # a graph for all shapes of batches
