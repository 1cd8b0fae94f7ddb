"""The parameter table: by hand on a tiny model, against built ones, and as printed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Mt
from messages import says

from mt.config.load import load_config
from mt.config.schema import ModelConfig
from mt.data.tokens.tokenizer import Tokenizer
from mt.inspect.summary import Summary, count_of, format_summary, summarise
from mt.model.transformer import Transformer

TINY: dict[str, Any] = {"d_model": 4, "n_heads": 2, "d_ff": 6, "max_positions": 8}
TINY |= {"n_encoder_layers": 1, "n_decoder_layers": 1}


def paper(**options: Any) -> Summary:
    """The base model of the 2017 paper as shipped."""
    loaded = load_config("vaswani2017.yaml").config
    words = loaded.tokenizer.size
    config = loaded.model.model_copy(update=options)
    return summarise(config, (words, words), loaded.tokenizer.joint)


def test_tiny_model_by_hand() -> None:
    """d 4, h 2, f 6, one layer a side, 10 source and 7 target words, pre-norm.

    attention     4 (4*4 + 4) = 80      feed-forward  4*6 + 6 + 6*4 + 4 = 58      norm  2*4 = 8
    encoder layer 80 + 58 + 2*8 = 154   decoder layer 2*80 + 58 + 3*8 = 242       last  2*8 = 16
    embeddings    10*4 + 7*4 = 68       output  tied 0, bias 7                    all   487
    """
    summary = summarise(ModelConfig(**TINY, output_bias=True), (10, 7), joint=False)
    counts = {name: count_of(block) for name, block in summary.blocks.items()}
    by_hand = {"embeddings": 68, "encoder.0": 154, "decoder.0": 242, "last norms": 16, "output": 7}
    assert counts == by_hand
    assert summary.total == 487
    encoder = {m.name: (m.shape, m.count) for m in summary.blocks["encoder.0"]}
    assert encoder["attention.query_key_value.weight K"] == ((4, 4), 16)
    assert encoder["attention.query_key_value.bias V"] == ((4,), 4)
    assert encoder["attention.output.weight"] == ((4, 4), 16)
    assert encoder["feed_forward.inner.weight"] == ((6, 4), 24)
    assert encoder["feed_forward.outer.bias"] == ((4,), 4)
    assert encoder["around_feed_forward.norm.weight"] == ((4,), 4)
    output = summary.blocks["output"][0]
    assert (output.shape, output.count) == ((7, 4), 0)
    assert output.tied_to == "tgt_embedding.tokens.weight"


@pytest.mark.parametrize(("joint", "src_words"), [(True, 7), (False, 7), (False, 10)])
@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize(("norm", "positions"), [("pre", "sinusoidal"), ("post", "learned")])
def test_the_table_lists_the_parameters_of_a_real_model(
    joint: bool, src_words: int, tie: bool, norm: Any, positions: Any
) -> None:
    options = {**TINY, "n_encoder_layers": 2, "tie_embeddings": tie, "norm": norm}
    config = ModelConfig(**options, positions=positions, attention_bias=tie, output_bias=not tie)
    summary = summarise(config, (src_words, 7), joint)
    model = Transformer(config, src_words, 7, joint)
    assert summary.total == sum(p.numel() for p in model.parameters())
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    bare = [re.sub(r"^(en|de)coder\.\d+\.", "", name) for name in names]
    listed = [m.name for block in summary.blocks.values() for m in block]
    assert [re.sub(" Q$", "", x) for x in listed if not re.search(" [KV]$", x)] == bare


def test_base_model_of_the_paper_has_about_65_million_parameters() -> None:
    """63,045,632 with 37,000 shared words, no biases in attention, d 512, f 2048, 6 + 6 layers.

    encoder layer  4 d^2 + (2 d f + f + d) + 2 * 2d = 1,048,576 + 2,099,712 + 2,048 =  3,150,336
    decoder layer  8 d^2 + (2 d f + f + d) + 3 * 2d = 2,097,152 + 2,099,712 + 3,072 =  4,199,936
    6 of each                                                                      = 44,101,632
    one embedding  37,000 * 512                                                    = 18,944,000

    The paper's table 3 says 65 million, with "about" 37,000 words. Its layers are these: with 2, 4
    and 8 layers it says 36, 50 and 80 million, and 4 fewer, 2 fewer and 2 more of ours are -29.4,
    -14.7 and +14.7 million. So the 2 million are rows of the embedding: 65 million hold 40,800
    words of 512. Three separate matrices, or none, would be 101 or 44 million.
    """
    summary = paper()
    counts = {name: count_of(block) for name, block in summary.blocks.items()}
    assert counts["encoder.5"] == 3_150_336
    assert counts["decoder.5"] == 4_199_936
    assert counts["embeddings"] == 18_944_000
    assert counts["output"] == 0
    assert summary.total == 63_045_632
    assert 63e6 < summary.total < 66e6
    for n, table3 in ((2, 36), (4, 50), (8, 80)):
        layers = paper(n_encoder_layers=n, n_decoder_layers=n).total - summary.total
        assert 65 + layers / 1e6 == pytest.approx(table3, abs=1)
    assert (65_000_000 - 44_101_632) // 512 == 40_817
    assert paper(tie_embeddings=False).total == 44_101_632 + 3 * 18_944_000 == 100_933_632
    # Those of M have no layer norms.
    rows = [line.split() for line in format_summary(summary).splitlines()]
    encoder = next(row for row in rows if row[:3] == ["encoder.0", "to", "encoder.5"] and row[4:])
    assert encoder[3:] == ["3,150,336", "3,148,288", "18,902,016"]
    assert rows[-2:] == [
        ["all", "63,014,912", "63,045,632"],
        ["if", "nothing", "were", "tied", "100,902,912", "100,933,632"],
    ]


def test_the_command_prints_json_and_takes_another_vocabulary(mt: Mt, tiny_run: Path) -> None:
    printed = json.loads(mt("inspect", "model", "--model", tiny_run, "--json").out)
    assert sum(block["parameters"] for block in printed["blocks"]) == printed["parameters"]
    own = "--set", f"tokenizer.model={tiny_run / 'tokenizer.model'}"
    ended = mt("inspect", "model", "--config", "base.yaml", "--json", *own)
    size = Tokenizer.load(tiny_run).src.size
    assert json.loads(ended.out)["vocabulary"] == {"source": size, "target": size, "joint": True}


def test_a_config_has_the_shape_and_vocabulary_of_the_model_that_it_continues(
    mt: Mt, tiny_run: Path, tmp_path: Path
) -> None:
    """As training has them, whatever `auto` would be for other text."""
    config = tmp_path / "more.yaml"
    config.write_text(
        "tokenizer: {vocab_size: auto}\nmodel: {dropout: auto}\n"
        f"train: {{init_from: {tiny_run}}}\n"
    )
    inspect = ("inspect", "model", "--json")
    ended = mt(*inspect, "--config", config)
    assert json.loads(ended.out) == json.loads(mt(*inspect, "--model", tiny_run).out)
    assert "vocab_size" not in ended.err
    assert says(ended.err, "model.dropout: auto is 0.1, for 100,000 pairs")
    anew = mt(*inspect, "--config", config, "--set", "train.new_vocabulary=true")
    assert json.loads(anew.out)["vocabulary"]["source"] == 8000
