"""The code that torch.compile makes for a GPU: graphs, guards, kernels, dtypes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import MonkeyPatch
from cuda_code import Code, NotRunError, fake_gpu
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode

from mt.config.load import config_from_mapping
from mt.data.tokens.batches import Update, collate
from mt.model import attention
from mt.model.gpu_ops import compile_rows, copy_weights, load_varlen_attn
from mt.model.transformer import Transformer
from mt.runtime.devices import Device
from mt.runtime.distributed import World
from mt.search.candidates import fused_candidates
from mt.training.compilation import compile_for_all_shapes
from mt.training.loss import logits_gradient
from mt.training.update import Updater

# Inductor imports what torch deprecates.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
# Rows, source tokens, target tokens. Inductor would make other graphs for targets of a multiple
# of 8, whatever the attention, and from 10,240 tokens on; each takes a minute on a GPU.
SHAPES = [(6, 23, 21), (1, 7, 7), (64, 8, 9), (2, 2, 2), (5, 9, 16), (600, 30, 5), (600, 5, 31)]
VOCABULARY = 32_000
CONFIG: dict[str, Any] = {"data": {"train": [{"src": "none", "tgt": "none"}]}}


@pytest.fixture
def codes(tmp_path: Path) -> Iterator[list[Code]]:
    with fake_gpu(tmp_path) as codes:
        yield codes


def base_model(layers: int) -> Transformer:
    """The model of base.yaml with this number of layer pairs, as a GPU trains it."""
    model = {"n_encoder_layers": layers, "n_decoder_layers": layers}
    config = config_from_mapping(CONFIG | {"model": model}, "test").model
    made = Transformer(config, VOCABULARY, VOCABULARY, joint=True)
    made.compute_dtype = torch.bfloat16
    return made.train()


def code_of_model(codes: list[Code], layers: int, packed: bool = False) -> tuple[Code, Code]:
    """Forward and backward pass; the graph is the same for all shapes of batches."""
    copy_weights(model := base_model(layers), torch.bfloat16)
    forward = compile_for_all_shapes(model)
    for rows, src, tgt in SHAPES:
        pairs = [(np.full(src - 1, 4), np.full(tgt - 1, 4))] * rows
        batch = collate(pairs).pack() if packed else collate(pairs)
        with pytest.raises(NotRunError):
            forward(batch.src, batch.tgt_in, batch.src_mask, batch.packed)
        assert len(codes) == 2
    one, other = codes
    codes.clear()
    return one, other


def check_code(forward: Code, backward: Code) -> None:
    """No casts of weights, few kernels, and dropout as torch 2.13 gets it right.

    Its `rand4x` is wrong in other kernels than those with contiguous offsets: of a kernel in one
    dimension, the number of the element. And only the forward pass draws: the backward pass, which
    might use another function, reads the mask. See pytorch/pytorch#198333.
    """
    draws = re.compile(r"\b(tl\.rand|rand4x)\(")
    assert draws.search(forward.text)
    for kernel in [part for part in forward.text.split("@triton.jit") if "rand4x(" in part]:
        (offset,) = re.findall(r"rand4x\(\w+, \(?(\w+)\)?\.to", kernel)
        assert re.search(rf"^ +{offset} = \(?x0\)?(\.to\(tl\.int32\))?$", kernel, re.MULTILINE)
        assert re.search(r"^ +x0 = xindex$", kernel, re.MULTILINE)
    assert not draws.search(backward.text)
    assert forward.casts == []
    assert len(forward.kernels) < 20
    assert (forward.products, backward.products) == (11, 22)


def test_the_model_is_one_graph_without_casts_of_weights(codes: list[Code]) -> None:
    """Of one layer pair; the masks of source padding keep two attentions from the causal kernel."""
    forward, backward = code_of_model(codes, 1)
    check_code(forward, backward)
    efficient, causal = (f"_scaled_dot_product_{x}_attention" for x in ("efficient", "flash"))
    assert forward.fallbacks == [efficient, causal, efficient]


def test_the_model_without_padding_is_one_graph(codes: list[Code]) -> None:
    assert load_varlen_attn()
    forward, backward = code_of_model(codes, 1, packed=True)
    check_code(forward, backward)
    assert forward.text.count("torch_attn._varlen_attn.default(") == 3


def test_the_loss_is_one_graph_for_any_number_of_tokens(codes: list[Code]) -> None:
    gradient = compile_rows(logits_gradient)
    for n in (4194, 300, 2):
        logits = torch.empty(n, VOCABULARY, dtype=torch.bfloat16)
        with pytest.raises(NotRunError), torch.no_grad():
            gradient(logits, torch.zeros(n, 1, dtype=torch.int64), 0.1)
    (code,) = codes
    assert len(code.kernels) == 2
    assert code.fallbacks == []


@pytest.mark.parametrize(
    ("n_hyps", "count", "kernels", "sorts"), [(1, 1, 4, []), (4, 8, 5, ["topk", "topk"])]
)
def test_the_choice_of_tokens_is_one_graph_for_any_number_of_sentences(
    codes: list[Code], n_hyps: int, count: int, kernels: int, sorts: list[str]
) -> None:
    """Greedy search needs no sort at all."""
    candidates = compile_rows(fused_candidates)
    for rows in (2, 64, 1500):
        logits, full = torch.empty(rows, n_hyps, VOCABULARY), torch.zeros(rows, dtype=torch.bool)
        with pytest.raises(NotRunError), torch.inference_mode():
            candidates(logits, torch.empty(rows, n_hyps), full, count)
    (code,) = codes
    assert (len(code.kernels), code.fallbacks) == (kernels, sorts)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_an_update_reads_no_number_of_the_gpu(monkeypatch: MonkeyPatch, precision: str) -> None:
    """It goes the way of a GPU on fake tensors, which have no number to read."""

    class AsGpu(Device):
        is_cuda = True

    small = {"d_model": 64, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1}
    config = config_from_mapping(CONFIG | {"model": small, "train": {"ema": 0.9}}, "test")
    monkeypatch.setattr(attention, "_uses_torch", lambda _: True)
    # A fake weight cannot be moved in place.
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_, **__: self)
    batches = [collate([(np.arange(4, 9), np.arange(4, 4 + n))] * n) for n in (3, 5)]
    update = Update(0, 0, 1, batches, sum(batch.n_tgt for batch in batches))
    with FakeTensorMode(allow_non_fake_inputs=True):
        device = AsGpu(torch.device("cpu"), precision)
        updater = Updater(config, cast("Any", OneSide()), device, World(), print)
        for step in range(2):
            found = updater.train_step(update, step)
            assert all(isinstance(each, FakeTensor) for each in found)
        with pytest.raises(DataDependentOutputException):
            float(found[0])
    assert updater.model.encoder_layers[0].feed_forward.inner.copies


class OneSide:
    """What a model needs to know of a tokenizer, both of whose sides it is."""

    size = 100
    joint = True

    @property
    def src(self) -> OneSide:
        """Of either language."""
        return self

    tgt = src
