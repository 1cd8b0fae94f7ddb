"""The parameter table: by hand on a tiny model, closed forms against built ones, and as printed."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from mt.config.load import load_config
from mt.config.schema import ModelConfig
from mt.inspect.summary import Summary, format_summary, summarise
from mt.model.transformer import Transformer

TINY: dict[str, Any] = {"d_model": 4, "n_heads": 2, "d_ff": 6, "max_positions": 8}
TINY |= {"n_encoder_layers": 1, "n_decoder_layers": 1}


def paper(**options: Any) -> Summary:
    """The base model of the 2017 paper as shipped."""
    loaded = load_config("vaswani2017.yaml").config
    words = loaded.tokenizer.size
    config = loaded.model.model_copy(update=options)
    return summarise(config, words, words, loaded.tokenizer.joint)


def test_tiny_model_by_hand() -> None:
    """d 4, h 2, f 6, one layer a side, 10 source and 7 target words, pre-norm.

    attention     4 (4*4 + 4) = 80      feed-forward  4*6 + 6 + 6*4 + 4 = 58      norm  2*4 = 8
    encoder layer 80 + 58 + 2*8 = 154   decoder layer 2*80 + 58 + 3*8 = 242       last  2*8 = 16
    embeddings    10*4 + 7*4 = 68       output  tied 0, bias 7                    all   487
    matrices      encoder 3*2 + 5 = 11  decoder 6*2 + 6 = 18  and 3               all   32
    """
    summary = summarise(ModelConfig(**TINY, output_bias=True), 10, 7, joint=False)
    counts = {block.name: block.count for block in summary.blocks}
    by_hand = {"embeddings": 68, "encoder.0": 154, "decoder.0": 242, "last norms": 16, "output": 7}
    assert counts == by_hand
    assert summary.total == summary.total_by_formula == 487
    assert summary.matrices == summary.matrices_by_formula == 32
    encoder = {m.name: (m.shape, m.count, m.per_head) for m in summary.blocks[1].matrices}
    assert encoder["attention.query_key_value.weight K"] == ((4, 4), 16, 2)
    assert encoder["attention.query_key_value.bias V"] == ((4,), 4, 0)
    assert encoder["attention.output.weight"] == ((4, 4), 16, 1)
    assert encoder["feed_forward.inner.weight"] == ((6, 4), 24, 1)
    assert encoder["feed_forward.outer.bias"] == ((4,), 4, 1)
    assert encoder["around_feed_forward.norm.weight"] == ((4,), 4, 0)
    output = summary.blocks[-1].matrices[0]
    assert (output.shape, output.count, output.per_head) == ((7, 4), 0, 1)
    assert output.tied_to == "tgt_embedding.tokens.weight"


@pytest.mark.parametrize(("joint", "src_words"), [(True, 7), (False, 7), (False, 10)])
@pytest.mark.parametrize("tie", [True, False])
def test_closed_forms_equal_the_built_model(joint: bool, src_words: int, tie: bool) -> None:
    """All 64 combinations of the other options; the built model is a real one every 8th time."""
    depths, flags = [(1, 2), (3, 1)], [False, True]
    kinds = itertools.product(["pre", "post"], ["sinusoidal", "learned"], flags, flags)
    combinations = list(itertools.product(depths, [1, 4], kinds))
    assert len(combinations) == 64
    for n, ((n_enc, n_dec), heads, (norm, positions, bias, output_bias)) in enumerate(combinations):
        options = {**TINY, "n_encoder_layers": n_enc, "n_decoder_layers": n_dec, "n_heads": heads}
        options |= {"norm": norm, "positions": positions, "tie_embeddings": tie}
        config = ModelConfig(**options, attention_bias=bias, output_bias=output_bias)
        summary = summarise(config, src_words, 7, joint)
        assert summary.total == summary.total_by_formula, config
        assert summary.matrices == summary.matrices_by_formula, config
        if n % 8 == 5:
            model = Transformer(config, src_words, 7, joint)
            assert summary.total == sum(p.numel() for p in model.parameters())
            names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
            bare = [re.sub(r"^(en|de)coder\.\d+\.", "", name) for name in names]
            listed = [m.name for block in summary.blocks for m in block.matrices]
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
    counts = {block.name: block.count for block in summary.blocks}
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


def test_matrices_counted_per_head_also_at_unequal_depth() -> None:
    """3h + 5 = 29 an encoder layer, 6h + 6 = 54 a decoder layer, 6 * 83 + 3 = 501 in all."""
    summary = paper()
    assert summary.matrices == summary.matrices_by_formula == 6 * (9 * 8 + 11) + 3 == 501
    # Biases, norms, learned positions and ties are no matrices of that count.
    more = paper(attention_bias=True, norm="pre", positions="learned", output_bias=True)
    assert more.matrices == paper(tie_embeddings=False).matrices == 501
    uneven = paper(n_encoder_layers=12, n_decoder_layers=1)
    per_block = {block.name: sum(m.per_head for m in block.matrices) for block in uneven.blocks}
    assert (per_block["encoder.3"], per_block["decoder.0"]) == (29, 54)
    assert uneven.total == uneven.total_by_formula == 60_947_968
    text = format_summary(uneven)
    assert "encoder.0 to encoder.11, each" in text
    assert "N (9h + 11)" not in text
    assert "12 x 29 + 1 x 54 + 3 = 405" in text


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("tie", [True, False])
def test_printed_table_holds_every_matrix_and_total(joint: bool, tie: bool) -> None:
    options = {"tie_embeddings": tie, "output_bias": True, "positions": "learned"}
    config = load_config("base.yaml").config.model
    config = config.model_copy(update={**options, "d_model": 1024, "d_ff": 4096})
    summary = summarise(config, 256_000 if joint else 128_000, 256_000, joint)
    lines = format_summary(summary).splitlines()
    assert max(len(line) for line in lines) < 100
    assert all(line == line.rstrip() for line in lines)
    # Without thousands separators and runs of spaces.
    rows = [" ".join(line.replace(",", "").split()) for line in lines]
    for block in summary.blocks:
        if block.name.split(".")[-1] in ("embeddings", "0", "last norms", "output"):
            first = next(n for n, row in enumerate(rows) if row.startswith(block.name)) + 1
            for row, matrix in zip(rows[first:], block.matrices, strict=False):
                count, tied = str(matrix.count), (matrix.tied_to or "").split(".")[0]
                end = f"tied 1 is {tied}" if tied else count
                assert row.startswith(f"{matrix.name} {' x '.join(map(str, matrix.shape))} {end}")
    each = next(block.count for block in summary.blocks if block.name == "encoder.0")
    assert f"encoder.0 to encoder.5 {each} {6 * each}" in rows
    for total in (f"all {summary.total}", f"sum {summary.total}"):
        assert total in rows
    text = "\n".join(rows)
    assert "attention.query_key_value.weight Q 1024 x 1024 1048576 8 of 1024 x 128" in text
    assert "6 x 29 + 6 x 54 + 3 = 501" in text
    assert "N (9h + 11) + 3" in text
