"""The messages that users meet most, word for word. The others are tested with `says`."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from conftest import Mt, refused, write_lines

# Arguments → the whole of stderr. `run` is a trained model, {here} the current folder.
MESSAGES = {
    "train --config nowhere.yaml": (
        "--config nowhere.yaml: must be a file or the name of a shipped config (base.yaml, "
        "chiasson-vaila.yaml, coding-details.yaml, finetune.yaml, medium.yaml, multi30k.yaml, "
        "small.yaml, tiny.yaml, vaswani2017.yaml, wmt14.yaml), found neither"
    ),
    "train --config no-data.yaml": (
        "data.train: must name at least one text to train on, found none; add - {src: FILE, "
        "tgt: FILE} below it"
    ),
    "train --config good.yaml --run-dir run": (
        "run directory run: holds a run with another model, tokenizer, start or language, which "
        "cannot change (data.src_lang: was de, now src; data.tgt_lang: was en, now tgt; "
        "tokenizer.vocab_size: was 320, now 300); set them back, or give another --run-dir, "
        "where train.init_from can name this run, or --fresh to set this one aside"
    ),
    "train --config good.yaml --device gpu": (
        "--device: must be auto, cpu, cuda or cuda:N, found 'gpu'"
    ),
    "config check --config unclosed.yaml": (
        "unclosed.yaml: line 2, column 1: not valid YAML: expected ',' or '}', but got '<stream"
        " end>'; check this line and the one above it"
    ),
    "config check --config modle.yaml": ("modle.yaml: modle: unknown section; did you mean model?"),
    "config check --config good.yaml --set model.d_model=many": (
        "--set: model.d_model: must be a whole number, found 'many'"
    ),
    "config check --config good.yaml --set optim.schedule=linear": (
        "--set: optim.schedule: must be inverse_sqrt, noam, cosine or constant, found 'linear'"
    ),
    "config check --config good.yaml --set model.n_heads=7": (
        "--set: model.d_model: must be even and a multiple of model.n_heads (7), found 32"
    ),
    "config check --config missing.yaml": (
        "data.train[0].src: there is no file {here}/nowhere.de ('nowhere.de' below data.root, "
        "which is '.'). Correct the name, or data.root where paths start."
    ),
    "config check --config shifted.yaml": (
        "data.train[0].tgt: short.en has 2 lines, train.de has 3. Line n of one file must be "
        "the translation of line n of the other: restore the missing line, or remove the "
        "surplus one."
    ),
    "config check --config latin1.yaml": (
        "data.train[0].src: latin1.de, line 2, byte 5 (the line's first is 0): e4 72 is not "
        "UTF-8. Convert the file; if it is WINDOWS-1252: iconv -f WINDOWS-1252 -t UTF-8 FILE > "
        "FILE.utf8"
    ),
    "config check --config rows.yaml": (
        "data.train[0].path: rows.tsv, line 3: as many cells as in the first line are required "
        "(2), found 1. Correct the line; where cells contain the delimiter or line breaks in "
        "quotation marks set quoting to csv, else to none (here none)."
    ),
    "config check --config columns.yaml": (
        "data.train[0].tgt: rows.tsv, line 2: there is no column 'fr'. Set tgt to one of its "
        "columns: 'de', 'en' (numbers from 1 in a table without names); where only some rows lack "
        "it set errors: skip."
    ),
    "translate --model nowhere train.de": (
        "--model nowhere: must be a run directory, a checkpoint, or an averaged or imported model; "
        "nothing exists at this path"
    ),
    "translate --model empty train.de": (
        "--model empty: must be a run directory, a checkpoint, or an averaged or imported model; "
        "it contains neither meta.json nor checkpoints/best"
    ),
    "translate --model run nowhere.de": ("there is no file {here}/nowhere.de."),
    "translate --model run train.de -o train.de": (
        "--output train.de: is the same file as the input (train.de), which would be lost; name"
        " another file"
    ),
    "translate --model run latin1.de": (
        "latin1.de, line 2, byte 5 (the line's first is 0): e4 72 is not UTF-8. Convert the "
        "file; if it is WINDOWS-1252: iconv -f WINDOWS-1252 -t UTF-8 FILE > FILE.utf8. Or give "
        "--errors replace, which turns them into U+FFFD"
    ),
    "evaluate --hyp train.en --ref short.en": (
        "--ref short.en has 2 lines, --hyp train.en has 3; line n of one must belong to line n "
        "of the other: check that both belong together and that no line was added, dropped or "
        "split"
    ),
    "evaluate --hyp train.en --ref train.en --metrics blue": (
        "--metrics: choose among bleu, chrf, chrf++, ter, comet, found blue; correct the list"
    ),
    "evaluate --ref train.en": (
        "evaluate: nothing to score; give --hyp FILE, or --model FOLDER --src FILE"
    ),
    "export ctranslate2 --model run -o empty": (
        "--output empty: already exists; give another path, or remove it"
    ),
}
# The rest of each config: the shape of the tiny model, with another vocabulary.
CONFIG = """
tokenizer: {vocab_size: 300}
model:
  {d_model: 32, n_heads: 2, n_encoder_layers: 1, n_decoder_layers: 1, d_ff: 64, dropout: 0.0}
"""


@pytest.fixture(scope="module")
def workplace(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workplace")
    (folder / "empty").mkdir()
    shutil.copytree(tiny_run, folder / "run", symlinks=True)
    write_lines(folder / "train.de", ["ein Haus", "ein Bär", "ein Baum"])
    write_lines(folder / "train.en", ["a house", "a bear", "a tree"])
    write_lines(folder / "short.en", ["a house", "a tree"])
    write_lines(folder / "rows.tsv", ["de\ten", "ein Haus\ta house", "ein Baum"])
    (folder / "latin1.de").write_bytes("ein Haus\nein Bär\nein Baum\n".encode("latin-1"))
    write_lines(folder / "unclosed.yaml", ["data: {src_lang: de"])
    write_lines(folder / "modle.yaml", ["modle: {d_model: 64}"])
    write_lines(folder / "no-data.yaml", ["model: {d_model: 64}"])
    for name, train in {
        "good": "{src: train.de, tgt: train.en}",
        "missing": "{src: nowhere.de, tgt: train.en}",
        "shifted": "{src: train.de, tgt: short.en}",
        "latin1": "{src: latin1.de, tgt: train.en}",
        "rows": "{path: rows.tsv, src: de, tgt: en}",
        "columns": "{path: rows.tsv, src: de, tgt: fr}",
    }.items():
        write_lines(folder / f"{name}.yaml", [f"data: {{train: {train}}}", CONFIG])
    return folder


@pytest.mark.parametrize(("arguments", "message"), MESSAGES.items(), ids=list(MESSAGES))
def test_message(
    arguments: str, message: str, workplace: Path, mt: Mt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workplace)
    assert refused(mt(*shlex.split(arguments))) == message.replace("{here}", str(workplace))
