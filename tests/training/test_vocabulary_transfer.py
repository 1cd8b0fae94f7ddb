"""Vocabulary transfer: embedding rows follow their pieces into another vocabulary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from conftest import Mapped
from finetuning import SPLIT, BaseOf, StartFrom, on
from sentencepiece import SentencePieceProcessor

from mt.model.checkpoint import load_model
from mt.training.finetune import _match_rows


def pieces_of(run_dir: Path, side: str = "") -> list[str]:
    """A vocabulary, read by SentencePiece itself."""
    joint = run_dir / "tokenizer.model"
    path = joint if joint.exists() else run_dir / f"tokenizer.{side}.model"
    processor = SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(i) for i in range(processor.piece_size())]


# --- another vocabulary -----------------------------------------------------------------------


def test_matching_pieces_by_hand() -> None:
    """Ids 0 to 3 match by id, the rest by text; new pieces are spelled, longest match first."""
    special = ["<pad>", "<unk>", "<s>", "</s>"]
    old = [*special, "<0xC3>", "<0xA9>", "▁", "a", "b", "ab", "lost"]
    new = [*special, "ab", "▁aab", "é", "<0x41>", "x", "a", "pads", "▁ab"]
    match = _match_rows(new, old)
    assert match.kept == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 9), (9, 7)]
    assert match.spelled == [
        (5, [6, 7, 9]),  # ▁ a ab
        (6, [4, 5]),  # é in its two bytes
        (7, []),  # a byte, not the letters of its name
        (8, []),
        (10, [7]),  # of pads only the a
        (11, [6, 9]),
    ]
    assert str(match) == "6 pieces kept, 6 new, 5 dropped; 2 of the new ones stay random"
    rows = torch.full((len(new), 2), -1.0)
    match.transfer(rows, torch.arange(22.0).view(11, 2))
    assert rows[4].tolist() == [18.0, 19.0]
    assert rows[6].tolist() == [9.0, 10.0]  # the mean of 8, 9 and 10, 11
    assert rows[7].tolist() == rows[8].tolist() == [-1.0, -1.0]
    bias = torch.full((len(new),), -1.0)
    match.transfer(bias, torch.arange(11.0))
    assert bias[[4, 5, 6]].tolist() == [9.0, pytest.approx(22 / 3), 4.5]


@pytest.mark.parametrize(
    ("before", "now", "model"),
    [
        ({}, {"vocab_size": 300}, {}),
        (
            {},
            {"type": "unigram", "vocab_size": 310},
            {"tie_embeddings": False, "output_bias": True},
        ),
        ({}, SPLIT, {}),
        (SPLIT, {}, {"tie_embeddings": False}),
        (SPLIT, {"joint": False, "vocab_size": 300}, {}),
    ],
    ids=["joint", "untied", "joint to separate", "separate to joint", "separate"],
)
def test_rows_follow_their_pieces(
    before: Mapped, now: Mapped, model: Mapped, base_of: BaseOf, start_from: StartFrom,
    other_corpus: Path,
) -> None:  # fmt: skip
    base = base_of(tokenizer=before, model=model)
    tuned = start_from(base, on(other_corpus, **now), model=model)
    alone = start_from(None, on(other_corpus, **now), model=model, train={"new_vocabulary": False})
    old = dict(load_model(base).model.named_parameters(remove_duplicate=False))
    new = tuned.weights()
    fresh = alone.weights()
    matrices = {
        "src_embedding.tokens.weight": "src",
        "tgt_embedding.tokens.weight": "tgt",
        "output.weight": "tgt",
    }
    matrices |= {"output.bias": "tgt"} if "output.bias" in new else {}
    for name, weight in new.items():
        if name not in matrices:
            assert torch.equal(weight, old[name]), name
    for name, side in matrices.items():
        theirs, ours = pieces_of(base, side), pieces_of(tuned.run_dir, side)
        both = set(theirs) & set(ours)
        assert 4 + 256 < len(both) < len(ours)
        for piece in both:
            row = old[name][theirs.index(piece)]
            assert torch.equal(new[name][ours.index(piece)], row), (name, piece)
        for piece in set(ours) - both:
            row = fresh[name][ours.index(piece)]
            assert not torch.equal(new[name][ours.index(piece)], row), piece
        if "ω" in ours:  # in the vocabulary of none of the base runs
            in_bytes = [old[name][theirs.index(byte)] for byte in ("<0xCF>", "<0x89>")]
            torch.testing.assert_close(new[name][ours.index("ω")], torch.stack(in_bytes).mean(0))
        label = {"src": "source", "tgt": "target"}[side]
        joint = before.get("joint", True) and now.get("joint", True)
        assert (
            f"{'joint' if joint else label} vocabulary: {len(both)} pieces kept, "
            f"{len(ours) - len(both)} new, {len(theirs) - len(both)} dropped"
        ) in tuned.log
    assert not any(line.startswith("tokenizer: taken") for line in tuned.log)


def test_a_piece_that_no_old_piece_spells_stays_random(
    base_of: BaseOf, start_from: StartFrom, other_corpus: Path
) -> None:
    """The old vocabulary has no byte pieces; the 256 new ones have no text to spell."""
    base = base_of(tokenizer={"byte_fallback": False, "vocab_size": 60})
    tuned = start_from(base, on(other_corpus))
    alone = start_from(None, on(other_corpus), train={"new_vocabulary": False})
    ours = pieces_of(tuned.run_dir)
    name = "tgt_embedding.tokens.weight"
    for piece in ("<0x00>", "<0xFF>", "ω"):
        assert torch.equal(
            tuned.weights()[name][ours.index(piece)], alone.weights()[name][ours.index(piece)]
        )
    (line,) = (line for line in tuned.log if line.startswith("joint vocabulary: "))
    assert int(re.search(r"; (\d+) of the new ones stay random$", line)[1]) >= 256  # type: ignore[index]


def test_learned_positions_are_cut_or_extended(base_of: BaseOf, start_from: StartFrom) -> None:
    model = {"positions": "learned"}
    base = base_of(model=model)
    old = load_model(base).model.src_embedding.positions
    name = "src_embedding.positions"
    fewer = start_from(base, model=model | {"max_positions": 40})
    assert torch.equal(fewer.weights()[name], old[:40])
    assert not any("positions" in line for line in fewer.log)
    more = start_from(base, model=model | {"max_positions": 80})
    assert torch.equal(more.weights()[name][:64], old)
    assert more.weights()[name][64:].abs().min() > 0
    assert f"{name}: positions from 64 on stay random, max_positions was 64" in more.log
