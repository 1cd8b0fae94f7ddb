"""`transformers-demystified-1.txt`, shown on the model that its config builds.

The paper's base model: post-norm, no biases in attention. It counts as if nothing were tied.
Where the document errs, the tests show what is right beside what the error gives.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from document_models import (
    NARROW,
    ONE_LAYER,
    Attention,
    a_batch,
    build,
    close,
    one_sentence,
    record_attention,
)
from torch import Tensor, nn

from mt.config.schema import ModelConfig
from mt.data.tokens.tokenizer import BOS
from mt.inspect.summary import summarise
from mt.model.transformer import Transformer

DEMYSTIFIED: dict[str, Any] = {"norm": "post", "attention_bias": False, "tie_embeddings": False}


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> list[Attention]:
    """Every use of attention, in the order of the forward pass."""
    return record_attention(monkeypatch)


def test_dimensions(spy: list[Attention]) -> None:
    """T_E 7 and T_D 5 rows of d_m 512 throughout; heads of d_K = d_V = 64.

    A is T x T, A = softmax of A' by row, and T_D x T_E across; Z' is T x h d_V, W^O is h d_V x d_m.
    """
    model = build(DEMYSTIFIED, **ONE_LAYER)
    src, mask = one_sentence([4] * 6)
    memory = model.encode(src, mask)
    hidden = model.decode(torch.tensor([[BOS, 4, 5, 6, 7]]), memory, mask)
    assert (memory.shape, hidden.shape) == ((1, 7, 512), (1, 5, 512))
    for call, (n_queries, n_keys) in zip(spy, [(7, 7), (5, 5), (5, 7)], strict=True):
        assert call.q.shape == (1, 8, n_queries, 64)
        assert call.k.shape == call.v.shape == (1, 8, n_keys, 64)
        assert call.weights.shape == (1, 8, n_queries, n_keys)
        close(call.weights.sum(-1), torch.ones(1, 8, n_queries).double())
        first_row = sum(call.weights[0, :, 0, j, None] * call.v[0, :, j] for j in range(n_keys))
        close(call.out[0, :, 0], first_row)
        assert call.out.transpose(1, 2).flatten(2).shape == (1, n_queries, 8 * 64)
    assert model.encoder[0].attention.output.weight.t().shape == (8 * 64, 512)
    assert (spy[1].weights == spy[1].weights.tril()).all()  # forbidden: exactly 0
    p = model.output(hidden).softmax(-1)
    assert p.shape == (1, 5, 12)  # over the output dictionary
    close(p.sum(-1), torch.ones(1, 5).double())


def test_data_flow() -> None:
    """Each layer feeds the next, and the last encoder's output every decoder."""
    model = build({**DEMYSTIFIED, **NARROW}, n_encoder_layers=4, n_decoder_layers=3)
    seen: list[tuple[Tensor, Tensor]] = []  # input and output of each layer
    memories: list[Tensor] = []
    for layer in [*model.encoder, *model.decoder]:
        layer.register_forward_hook(lambda _m, x, y: seen.append((x[0], y)))
    for layer in model.decoder_layers:
        layer.cross_attention.register_forward_pre_hook(
            lambda _m, _x, options: memories.append(options["memory"]), with_kwargs=True
        )
    src, tgt_in, src_mask = a_batch()
    hidden = model(src, tgt_in, src_mask)
    for n in (1, 2, 3, 5, 6):
        assert seen[n][0] is seen[n - 1][1]
    assert len(memories) == 3
    assert all(memory is seen[3][1] for memory in memories)
    assert hidden is seen[6][1]  # post-norm: no norm after the last


def test_number_of_matrices() -> None:
    """3h + 5, 6h + 6, 9h + 11 and N (9h + 11) + 3; counted on built models."""
    for n, h in ((6, 8), (2, 4)):
        config = ModelConfig(
            **{**DEMYSTIFIED, "n_encoder_layers": n, "n_decoder_layers": n, "n_heads": h}
        )
        with torch.device("meta"):
            model = Transformer(config, 10, 10, joint=False)
        counts = {"encoder": 0, "decoder": 0, "peripheral": 0}
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                matrices = (
                    parameter.t().split(512 // h, dim=1)
                    if "query_key_value" in name
                    else [parameter]
                )
                counts[
                    name.split(".")[0] if name.startswith(("encoder", "decoder")) else "peripheral"
                ] += len(matrices)
        assert counts == {"encoder": n * (3 * h + 5), "decoder": n * (6 * h + 6), "peripheral": 3}
        total = summarise(config, 10, 10, joint=False).matrices
        assert sum(counts.values()) == total == n * (9 * h + 11) + 3
    assert 6 * (9 * 8 + 11) + 3 == 501


def test_number_of_parameters_and_errors() -> None:
    """Its sums (1) to (6), d_m 512, d_K = d_V = 64, d_ff 2048, h 8, N 6.

    It errs in leaving out the layer norms (and any biases of the projections), and in counting
    three matrices of words: with 37,000 that is 101 million. Tied as in the paper it is 63, "about
    65".
    """
    attention = (512 * 64 + 512 * 64 + 512 * 64) * 8 + 8 * 64 * 512  # (1), (3), (4)
    feed_forward = 512 * 2048 + 2048 + 2048 * 512 + 512  # (2), (5)
    words = 37_000 * 512
    by_document = 6 * (3 * attention + 2 * feed_forward) + 3 * words  # (6)
    assert by_document == 100_902_912
    norms = (6 * 2 + 6 * 3) * 2 * 512
    config = ModelConfig(**DEMYSTIFIED)
    assert summarise(config, 37_000, 37_000, joint=True).total == by_document + norms
    biased = config.model_copy(update={"attention_bias": True})
    assert summarise(biased, 37_000, 37_000, joint=True).total == by_document + norms + 18 * 4 * 512
    tied = config.model_copy(update={"tie_embeddings": True})
    assert (
        summarise(tied, 37_000, 37_000, joint=True).total
        == by_document + norms - 2 * words
        == 63_045_632
    )
    with torch.device("meta"):  # positions: nothing to learn, and no other dimensions
        positions = Transformer(config, 10, 10, joint=True).src_embedding.positions
    assert not isinstance(positions, nn.Parameter)
    assert positions.shape[1] == 512
