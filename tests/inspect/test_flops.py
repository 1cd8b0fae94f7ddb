"""FLOPs that torch counts without numbers, by hand; what the command prints."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Mt, refused
from messages import says

from mt.config.schema import Config
from mt.data.tokens.tokenizer import Tokenizer
from mt.inspect.flops import count_flops
from mt.inspect.summary import summarise


def test_flops_by_hand() -> None:
    """d 8, f 16, V 50, S = T = 3: the encoder's layer, the decoder's two, and the output.

    A layer's projections are 8 d^2 for each token, its feed-forward block 4 d f, and scores and
    weighted sum 4 d for each token looked at. Cross-attention adds 4 d^2 on both sides.
    """
    sizes = {"d_model": 8, "n_heads": 2, "d_ff": 16, "n_encoder_layers": 1, "n_decoder_layers": 2}
    config = Config.model_validate({"model": sizes, "batch": {"tokens_per_update": 1000}})
    flops = count_flops(summarise(config.model, 50, 50, joint=True), config, length=3)
    encoder = 512 + 512 + 3 * 32
    decoder = 2 * (768 + 256 + 512 + 6 * 32)
    forward = encoder + decoder + 2 * 8 * 50
    assert flops["forward_per_target_token"] == forward
    assert flops["training_per_target_token"] == 3 * forward
    assert flops["training_per_update"] == 1000 * flops["training_per_target_token"]


def test_the_command_prints_json_and_a_table(mt: Mt, tiny_run: Path) -> None:
    printed = json.loads(mt("inspect", "model", "--model", tiny_run, "--json", "--length", 20).out)
    assert list(printed) == [
        "vocabulary", "parameters", "matrices_per_head", "blocks", "closed_form", "flops",
    ]  # fmt: skip
    assert sum(term["count"] for term in printed["closed_form"]) == printed["parameters"]
    assert sum(block["parameters"] for block in printed["blocks"]) == printed["parameters"]
    assert printed["flops"]["length"] == 20
    text = mt("inspect", "model", "--config", "base.yaml").out.decode()
    assert says(text, "sentences of 30 tokens", "an update of 25,000 target tokens", "--dry-run")
    assert max(map(len, text.split("\n"))) <= 100


def test_the_command_takes_another_vocabulary_and_refuses_a_length_beyond_the_positions(
    mt: Mt, tiny_run: Path
) -> None:
    base = ("inspect", "model", "--config", "base.yaml", "--json")
    ended = mt(*base, "--set", f"tokenizer.model={tiny_run / 'tokenizer.model'}")
    size = Tokenizer.load(tiny_run).src.size
    assert json.loads(ended.out)["vocabulary"] == {"source": size, "target": size, "joint": True}
    assert mt(*base, "--length", 1024).code == 0
    message = refused(mt(*base, "--length", 1025))
    assert says(message, "--length", "model.max_positions", "1,024", "1,025")
