"""FLOPs and memory in closed form: by hand, and against what torch counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Mt, refused
from messages import says
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mt.config.schema import Config, ModelConfig
from mt.data.tokens.tokenizer import Tokenizer
from mt.inspect.cost import (
    activation_bytes,
    cache_bytes,
    cost_of,
    forward_flops,
    start_flops,
    step_flops,
)
from mt.inspect.summary import summarise
from mt.model.transformer import Transformer
from mt.runtime.devices import choose_device
from mt.search.inference import Decoding, Inference
from mt.training.optim import build_optimizer, n_moments

WORDS = 50


def config_of(**keys: Any) -> ModelConfig:
    """d 8, h 2, f 16, one encoder layer and two decoder layers."""
    sizes = {"d_model": 8, "n_heads": 2, "d_ff": 16, "n_encoder_layers": 1, "n_decoder_layers": 2}
    return ModelConfig.model_validate({**sizes, "max_positions": 64, **keys})


def batch(src: int, tgt: int, rows: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Ids of both sides, and the mask of the source."""
    ids = torch.randint(4, WORDS, (rows, src)), torch.randint(4, WORDS, (rows, tgt))
    return *ids, torch.ones(rows, src, dtype=torch.bool)


# --- FLOPs ------------------------------------------------------------------------------------


def test_flops_by_hand() -> None:
    """S 3, T 2: encoder 3 (512 + 512 + 96), cross keys and values 3 x 2 x 256, decoder
    2 x 2 (768 + 512 + 160), output 2 x 2 x 8 x 50.
    """
    assert start_flops(config_of(), 3) == 3 * 1120 + 1536
    assert forward_flops(config_of(), WORDS, 3, 2) == 3360 + 1536 + 4 * 1440 + 1600
    # Step 2 of a beam of 3: each hypothesis multiplies 3 columns of the source and 1 + 3 others.
    assert step_flops(config_of(), WORDS, 3, 3, 2) == 3 * (2 * (768 + 512 + 224) + 800)
    assert step_flops(config_of(), WORDS, 3, 3, 1) == 2 * (768 + 512 + 128) + 800


@pytest.mark.parametrize(("src", "tgt"), [(3, 2), (17, 29)])
def test_flops_of_training_are_what_torch_counts(src: int, tgt: int) -> None:
    model = Transformer(config_of(dropout=0.0), WORDS, WORDS, joint=True).train()
    source, target, mask = batch(src, tgt)
    with FlopCounterMode(display=False) as counter:
        scores = model.output(model(source, target, mask))
        forward = counter.get_total_flops()
        scores.sum().backward()
    assert forward == forward_flops(model.config, WORDS, src, tgt)
    assert counter.get_total_flops() == 3 * forward


def test_flops_of_decoding_are_what_torch_counts() -> None:
    """From 16 columns on: caches of fewer are padded on a CPU."""
    model = Transformer(config_of(), WORDS, WORDS, joint=True)
    source, _, mask = batch(16, 1)
    beam = 4
    # Not through `Inference`, whose prepacked products torch does not count.
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        state = Decoding(model.eval(), model.encode(source, mask), mask, beam)
    assert counter.get_total_flops() == start_flops(model.config, 16)
    for step in range(1, 9):
        rows = 1 if step == 1 else beam
        parents = torch.zeros(1, rows, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            state.step(torch.full((1, rows), 5), parents)
        if 1 + beam * (step - 1) >= 16:
            assert counter.get_total_flops() == step_flops(model.config, WORDS, beam, 16, step)


# --- memory -----------------------------------------------------------------------------------


def kept_for_backward(model: Transformer, src: int, tgt: int, rows: int) -> int:
    """Bytes of the tensors that a forward pass keeps, each storage once, without the weights."""
    weights = {x.untyped_storage().data_ptr() for x in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        place = x.untyped_storage().data_ptr()
        if place not in weights:
            kept[place] = x
        return x

    source, target, mask = batch(src, tgt, rows)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        model(source, target, mask)
    return sum(x.untyped_storage().nbytes() for x in kept.values())


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"norm": "post"},
        {"activation": "gelu"},
        {"dropout": 0.0},
        {"n_encoder_layers": 3, "attention_dropout": 0.1},
    ],
)
def test_activations_are_what_torch_keeps(keys: dict[str, Any]) -> None:
    model = Transformer(config_of(**keys), WORDS, WORDS, joint=True).train()
    expected = activation_bytes(model.config, 16, 24, 4, size=4)
    assert kept_for_backward(model, 16, 24, 4) == pytest.approx(expected, rel=0.02)


def test_activations_in_bf16_are_what_torch_keeps_besides_the_weights_in_bf16() -> None:
    model = Transformer(config_of(), WORDS, WORDS, joint=True).train()
    model.compute_dtype = torch.bfloat16
    summary = summarise(model.config, WORDS, WORDS, joint=True)
    layers = sum(block.count for block in summary.blocks if block.name != "embeddings")
    expected = activation_bytes(model.config, 16, 24, 64, size=2) + 2 * layers
    assert kept_for_backward(model, 16, 24, 64) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("steps", [3, 17, 18])
def test_the_cache_is_what_decoding_holds(steps: int) -> None:
    model = Transformer(config_of(), WORDS, WORDS, joint=True)
    source, _, mask = batch(20, 1, rows=3)
    state = Inference(model, choose_device("cpu", "fp32")).start(source, mask, 2)
    for step in range(steps):
        shape = (3, 2 if step else 1)
        state.step(torch.full(shape, 5), torch.zeros(shape, dtype=torch.int64))
    held = sum(x.nbytes for layer in (*state.source, *state.cache) for x in layer)
    assert cache_bytes(model.config, 20, steps, 3, 2, size=4) == held


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("keys", [{}, {"tie_embeddings": False, "positions": "learned"}])
def test_moments_are_what_the_optimiser_holds(optimizer: str, keys: dict[str, Any]) -> None:
    sections = {"model": config_of(**keys).model_dump(), "optim": {"optimizer": optimizer}}
    config = Config.model_validate(sections)
    model = Transformer(config.model, WORDS, WORDS, joint=True)
    built = build_optimizer(model, config.optim, torch.float32)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    built.step()
    states = [state.items() for state in built.state.values()]
    held = sum(x.nbytes for state in states for name, x in state if name != "step")
    summary = summarise(config.model, WORDS, WORDS, joint=True)
    cost = cost_of(summary, config, length=10, batch_tokens=95, beam_size=5)
    assert cost["memory_bytes"]["training"]["optimizer"] == held
    counted = [
        n_moments(group) * p.numel() for group in built.param_groups for p in group["params"]
    ]
    assert 4 * sum(counted) == held


def test_the_sum_of_training_by_hand() -> None:
    """Weights, gradients and Adam's two moments are 16 bytes a parameter, an average 4 more."""
    config = Config.model_validate({"model": config_of().model_dump(), "train": {"ema": 0.99}})
    summary = summarise(config.model, WORDS, WORDS, joint=True)
    cost = cost_of(summary, config, length=10, batch_tokens=95, beam_size=5)
    memory, flops = cost["memory_bytes"], cost["flops"]
    activations = activation_bytes(config.model, 10, 10, 9, size=4)
    assert memory["training"]["total"] == 20 * summary.total + activations + 2 * 4 * 90 * WORDS
    assert memory["decoding"]["cache"] == cache_bytes(config.model, 10, 10, 1, 5, size=4)
    per_token = flops["training_per_target_token"]
    assert per_token == 3 * forward_flops(config.model, WORDS, 10, 10) // 10
    assert flops["training_per_update"] == per_token * config.batch.tokens_per_update


# --- the command ------------------------------------------------------------------------------


def test_the_command_prints_json(mt: Mt, tiny_run: Any) -> None:
    options = ("--json", "--batch-tokens", 600, "--beam-size", 3, "--length", 20)
    found = json.loads(mt("inspect", "model", "--model", tiny_run, *options).out)
    assert list(found) == [
        *("vocabulary", "parameters", "matrices_per_head", "blocks", "closed_form"),
        *("flops", "memory_bytes"),
    ]
    assert sum(term["count"] for term in found["closed_form"]) == found["parameters"]
    assert sum(block["parameters"] for block in found["blocks"]) == found["parameters"]
    training = found["memory_bytes"]["training"]
    assert training["gradients"] == 4 * found["parameters"]
    assert (training["batch_tokens"], found["memory_bytes"]["decoding"]["beam_size"]) == (600, 3)


def test_the_command_prints_a_table(mt: Mt) -> None:
    ended = mt("inspect", "model", "--config", "base.yaml", "--batch-tokens", 3000)
    text = ended.out.decode()
    assert "memory of training, estimated, batches of 3,000 tokens, fp32\n  weights  " in text
    assert "decoding, for each output token, beam 5" in text
    assert max(map(len, text.split("\n"))) <= 100


def test_the_command_takes_another_vocabulary_and_refuses_bad_options(
    mt: Mt, tiny_run: Path
) -> None:
    base = ("inspect", "model", "--config", "base.yaml", "--json")
    ended = mt(*base, "--set", f"tokenizer.model={tiny_run / 'tokenizer.model'}")
    size = Tokenizer.load(tiny_run).src.size
    assert json.loads(ended.out)["vocabulary"] == {"source": size, "target": size, "joint": True}
    precisions = "fp32, bf16, fp16"
    assert says(refused(mt(*base, "--precision", "int8")), "--precision", precisions, "'int8'")
    assert mt(*base, "--length", 1024).code == 0
    message = refused(mt(*base, "--length", 1025))
    assert says(message, "--length", "model.max_positions", "1,024", "1,025")
