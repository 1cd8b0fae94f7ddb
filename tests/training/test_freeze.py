"""`train.freeze`: which parameters are not trained, and which combinations are refused."""

from __future__ import annotations

import pytest
import torch
from conftest import QuickConfig
from finetuning import EMBEDDINGS, SPLIT, StartFrom

from mt.data.tokens.loader import Prefetcher
from mt.errors import ConfigError
from mt.model.transformer import Transformer
from mt.training.finetune import PARTS, freeze
from mt.training.trainer import Trainer

STACKS = ["encoder", "decoder"]
SUBLAYERS = ["self_attention", "cross_attention", "feed_forward"]


# --- frozen parts -----------------------------------------------------------------------------


SEPARATE = {
    "tokenizer": SPLIT,
    "model": {"tie_embeddings": False, "positions": "learned", "output_bias": True},
}
NAMES = {
    "source_embedding": {"src_embedding"},
    "target_embedding": {"tgt_embedding"},
    "output": {"output"},
    "encoder": {"encoder.0", "encoder_norm"},
    "decoder": {"decoder.0", "decoder_norm"},
    "self_attention": {
        "encoder.0.attention", "encoder.0.around_attention", "decoder.0.self_attention",
        "decoder.0.around_self_attention",
    },
    "cross_attention": {"decoder.0.cross_attention", "decoder.0.around_cross_attention"},
    "feed_forward": {
        f"{stack}.0.{name}" for stack in STACKS for name in ("feed_forward", "around_feed_forward")
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "parts",
    [
        *([part] for part in PARTS),
        ["encoder", "source_embedding"],
        [*EMBEDDINGS, *SUBLAYERS],
        [*STACKS, *EMBEDDINGS[:2]],
    ],
    ids="+".join,
)
def test_only_frozen_weights_stay_as_they_are(parts: list[str], start_from: StartFrom) -> None:
    """After three updates with weight decay and averaging; frozen weights get no gradient."""
    started = start_from(
        None, SEPARATE, train={"freeze": parts, "ema": 0.5}, optim={"weight_decay": 0.1}
    )
    before = started.weights()
    trainer = started.trainer
    gradients: list[int] = []
    trainer.updater.optimizer.register_step_pre_hook(
        lambda *_: gradients.append(
            sum(p.grad is not None for p in trainer.updater.model.parameters())
        )
    )
    train_updates(trainer, 3)
    frozen = {
        name
        for name in before
        if any(name.startswith(f"{stem}.") for part in parts for stem in NAMES[part])
    }
    assert 0 < len(frozen) < len(before)
    averaged = dict(trainer.updater.ema.named_parameters()) if trainer.updater.ema else {}
    for name, weight in started.weights().items():
        assert torch.equal(weight, before[name]) == (name in frozen), name
        assert torch.equal(averaged[name], before[name]) == (name in frozen), name
    assert gradients == [len(before) - len(frozen)] * 3
    sizes = (
        sum(before[name].numel() for name in before.keys() - frozen),
        sum(w.numel() for w in before.values()),
    )
    assert (
        f"frozen: {', '.join(parts)}; {sizes[0]:,} of {sizes[1]:,} weights are trained"
        in started.log
    )


def train_updates(trainer: Trainer, count: int) -> None:

    with Prefetcher(trainer.plan, 0, 0) as prefetcher:
        for update in prefetcher:
            trainer.updater.train_step(update, trainer.state.step)
            trainer.state.step += 1
            if trainer.state.step == count:
                return


def test_tied_matrices_are_frozen_together(start_from: StartFrom) -> None:
    started = start_from(None, train={"freeze": EMBEDDINGS})
    before = started.weights()
    train_updates(started.trainer, 2)
    after = started.weights()
    for name in ("src_embedding.tokens.weight", "tgt_embedding.tokens.weight", "output.weight"):
        assert torch.equal(after[name], before[name])
    name = "encoder.0.attention.output.weight"
    assert not torch.equal(after[name], before[name])


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("tied", "joint"), [(True, True), (True, False), (False, True)])
def test_every_set_of_parts_is_frozen_or_refused(
    norm: str, tied: bool, joint: bool, quick_config: QuickConfig
) -> None:
    """Of 255 sets, those are refused that split a shared matrix or leave nothing to train."""
    model = {"norm": norm, "tie_embeddings": tied, "positions": "sinusoidal"}
    config = quick_config(model=model).model
    shared = set(EMBEDDINGS if joint else EMBEDDINGS[1:]) if tied else set()
    with torch.device("meta"):
        built = Transformer(config, 8, 8, joint)
    refusals = {"shares a matrix with": 0, "must leave weights to train": 0}
    for bits in range(1, 2 ** len(PARTS)):
        parts = {part for i, part in enumerate(PARTS) if bits >> i & 1}
        encoder = "encoder" in parts or (
            norm == "post" and {"self_attention", "feed_forward"} <= parts
        )
        decoder = "decoder" in parts or (norm == "post" and set(SUBLAYERS) <= parts)
        expected = None
        if 0 < len(shared & parts) < len(shared):
            expected = "shares a matrix with"
        elif encoder and decoder and set(EMBEDDINGS) <= parts:
            expected = "must leave weights to train"
        built.requires_grad_(True)
        if expected is None:
            freeze(built, sorted(parts))
            assert any(parameter.requires_grad for parameter in built.parameters())
            continue
        refusals[expected] += 1
        with pytest.raises(ConfigError, match=expected):
            freeze(built, sorted(parts))
    assert refusals["must leave weights to train"] > 0
    assert (refusals["shares a matrix with"] > 0) == tied
