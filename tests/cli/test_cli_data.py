"""`mt data prepare`: training continues with what it has made."""

from __future__ import annotations

from pathlib import Path

from conftest import Mt
from messages import says


def test_what_is_prepared_is_what_training_uses(mt: Mt, tiny_config: Path, tmp_path: Path) -> None:
    sizes = ("--set", "tokenizer.vocab_size=auto", "--set", "model.dropout=auto")
    prepare = ("data", "prepare", "--config", tiny_config, *sizes, "--run-dir")
    first, again = (mt(*prepare, tmp_path) for _ in range(2))
    assert says(first.lines[-1], tmp_path, "ready to train on 2,000 pairs")
    assert first.lines == again.lines
    assert "auto is 4,000, model.dropout: auto is 0.3, for 2,000 pairs\n" in first.err
    assert says(again.err, "auto is 4,000, model.dropout: auto is 0.3, since this run was started")
    assert "tokenizer: training" not in again.err

    options = ("--run-dir", tmp_path, "--set", "train.max_steps=1", "--device", "cpu")
    ended = mt("train", "--config", tiny_config, *sizes, *options)
    assert ended.code == 0, ended.err
    assert "2,000 of 2,000 pairs kept" in ended.err
    assert "tokenizer: training" not in ended.err
    assert "encoding into" not in ended.err
    assert "have changed" not in ended.err
