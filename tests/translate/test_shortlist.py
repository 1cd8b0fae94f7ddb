"""The lexical shortlist: IBM Model 1 against loops, its file, and translating with it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from conftest import Mt, lines_of, refused
from messages import says

from mt.data.tokens.directions import DirectedPairs
from mt.data.tokens.store import open_built
from mt.data.tokens.tokenizer import EOS, Tokenizer
from mt.runs.model_folder import find_model, open_model
from mt.translate import shortlist
from mt.translate.shortlist import ALWAYS, CANDIDATES, store_of, translation_table

pytest.importorskip("ctranslate2")


def test_the_table_is_that_of_ibm_model_1(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in loops over words, as in the paper."""
    monkeypatch.setattr(shortlist, "MOST_LINKS", 2_000)
    pairs = DirectedPairs.of(open_built(tiny_run / "store" / "train"))
    size = Tokenizer.load(tiny_run).tgt.size
    source, target, probability = translation_table(pairs, size)
    links = int(((pairs.src_lengths + 1) * pairs.tgt_lengths).sum())
    chosen = pairs.pairs(np.arange(0, len(pairs), 1 + links // 2_000))
    assert len(chosen) > 10
    table: dict[tuple[int, int], float] = defaultdict(lambda: 1 / size)
    for _ in range(shortlist.ITERATIONS):
        expected: dict[tuple[int, int], float] = defaultdict(float)
        total: dict[int, float] = defaultdict(float)
        for src, tgt in chosen:
            words = [*src.tolist(), EOS]
            for word in tgt.tolist():
                norm = sum(table[other, word] for other in words)
                for other in words:
                    expected[other, word] += table[other, word] / norm
                    total[other] += table[other, word] / norm
        table.update({key: value / total[key[0]] for key, value in expected.items()})
    found = np.array([table[key] for key in zip(source.tolist(), target.tolist(), strict=True)])
    np.testing.assert_allclose(probability, found, rtol=1e-9)


def test_export_and_translate(mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = mt("export", "ctranslate2", "-m", tiny_run, "-o", out, "--shortlist")
    assert ended.code == 0
    assert f"{out / 'vmap.txt'}: candidates of " in ended.err
    lines = lines_of(out / "vmap.txt")
    rows = [(line.split("\t")[0], line.split("\t")[1].split(" ")) for line in lines]
    assert rows[0][0] == ""
    assert len(rows[0][1]) <= ALWAYS
    assert all(len(candidates) <= CANDIDATES + 1 for _, candidates in rows[1:])
    table = {source: set(candidates) for source, candidates in rows}
    tokenizer = Tokenizer.load(tiny_run)
    texts = [(tiny_corpus / f"test.{side}").read_text(encoding="utf-8") for side in ("src", "tgt")]
    hits = [
        piece in set().union(*(table.get(one, set()) for one in tokenizer.src.pieces(source)))
        for source, target in zip(*(text.splitlines() for text in texts), strict=True)
        for piece in tokenizer.tgt.pieces(target)
    ]
    assert sum(hits) > 0.9 * len(hits)
    arguments = ["translate", "-m", tiny_run, tiny_corpus / "test.src", "--engine", "ctranslate2"]
    plain = mt(*arguments).lines
    short = mt(*arguments, "--shortlist", out / "vmap.txt").lines
    assert len(plain) == len(short)
    assert sum(one == other for one, other in zip(plain, short, strict=True)) >= 30
    word = next(one[1:] for one in rows[0][1] if one[:1] == "▁" and one[1:].isalpha())
    (tmp_path / "few").write_text(f"\t▁{word}\n", encoding="utf-8")
    few = mt(*arguments, "--shortlist", tmp_path / "few").lines
    assert {word for line in few for word in line.split()} == {word}


def test_a_file_that_is_no_shortlist_of_the_model(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    arguments = ["translate", "-m", tiny_run, tiny_corpus / "test.src", "--device", "cpu"]
    path = tmp_path / "vmap.txt"
    piece = Tokenizer.load(tiny_run).tgt.pieces_of([10])[0]
    for content, parts in (
        (None, ["cannot be read", "No such file"]),
        (b"\t\xff\n", ["must be UTF-8"]),
        (f"\t{piece}\neins zwei\n".encode(), ["line 2", "a source piece, a tab", "no tab"]),
        (f"\t{piece} ▁foreign\n".encode(), ["line 1", "of this model", "'▁foreign'"]),
    ):
        if content is not None:
            path.write_bytes(content)
        for engine in ("auto", "ctranslate2"):
            message = refused(mt(*arguments, "--engine", engine, "--shortlist", path))
            assert says(message, "--shortlist", path, *parts, "mt export")
    path.write_text(f"\t{piece}\n", encoding="utf-8")
    message = refused(mt(*arguments, "--shortlist", path, "--no-repeat-ngram", 2))
    assert says(message, "--shortlist", "only CTranslate2", "no --no-repeat-ngram", "leave it out")


def test_a_model_without_a_run_has_no_store(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    assert mt("average", tiny_run, "--last", 1, "-o", model).code == 0
    message = refused(mt("export", "ctranslate2", "-m", model, "-o", out, "--shortlist"))
    assert says(message, "--shortlist", "token store of the run", "but there is no", "leave out")
    assert not out.exists()
    # An average is looked for in the run that it lies in, not in the folder above that.
    within = tiny_run / "averaged"
    assert store_of(within) == tiny_run / "store" / "train"


def test_what_an_earlier_mt_tuned_is_ignored(
    mt: Mt, copied_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    """`mt tune` of 0.3.0 left a choice in `meta.json`, and a shortlist; training a fit."""
    arguments = ["translate", "-m", copied_run, tiny_corpus / "test.src"]
    before = mt(*arguments)
    folder = find_model(copied_run)
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    meta["tuned"] = {"beam_size": 1, "length_penalty": 0.2, "precision": "int8", "shortlist": True}
    meta["sha256"]["vmap.txt"] = "0"
    meta["confidence"] = {"weights": {"intercept": 1.0}}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    (folder / "vmap.txt").write_text("\t▁\n", encoding="utf-8")
    now = mt(*arguments)
    assert (now.code, now.out) == (0, before.out)
    assert open_model(copied_run).config.decode.beam_size > 1
    assert mt("export", "ctranslate2", "-m", copied_run, "-o", tmp_path / "out").code == 0
    assert not (tmp_path / "out" / "vmap.txt").exists()
