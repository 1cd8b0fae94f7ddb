"""`mt data prepare`: by one job or by several, the same run directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Mt, refused
from messages import says

from mt.data.tokens import store_parts
from mt.runs.run_dir import STORE


def written(run_dir: Path) -> dict[str, bytes]:
    """The bytes of tokenizer and token store."""
    files = [run_dir / "tokenizer.model", *(run_dir / STORE / "train").iterdir()]
    return {path.name: path.read_bytes() for path in files}


def test_shards_prepare_the_run_that_one_process_prepares_and_training_uses_it(
    mt: Mt, tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = ("--set", "tokenizer.vocab_size=auto", "--set", "model.dropout=auto")
    prepare = ("data", "prepare", "--config", tiny_config, *sizes, "--run-dir")
    ended = mt(*prepare, tmp_path / "alone")
    assert says(ended.lines[-1], tmp_path / "alone", "ready to train on 2,000 pairs")
    monkeypatch.setattr(store_parts, "PAIRS_PER_PART", 300)
    first, last = (mt(*prepare, tmp_path / "sharded", "--shard", f"{k}/2") for k in (2, 1))
    assert (first.code, last.code) == (0, 0), last.err
    assert says(first.lines[-1], tmp_path / "sharded", "shard 2 of 2", "others are not")
    assert says(last.lines[-1], tmp_path / "sharded", "ready to train on 2,000 pairs")
    assert first.err.count("tokenizer: training 4,000 tokens") == 1
    assert "auto is 4,000, model.dropout: auto is 0.3, for 2,000 pairs\n" in first.err
    assert says(last.err, "auto is 4,000, model.dropout: auto is 0.3, since this run was started")
    assert last.err.count("tokenizer: training") == 0
    assert written(tmp_path / "sharded") == written(tmp_path / "alone")

    options = ("--run-dir", tmp_path / "sharded", "--set", "train.max_steps=1", "--device", "cpu")
    ended = mt("train", "--config", tiny_config, *sizes, *options)
    assert ended.code == 0, ended.err
    assert "2,000 of 2,000 pairs kept" in ended.err
    assert "tokenizer: training" not in ended.err
    assert "encoding into" not in ended.err
    assert "have changed" not in ended.err


@pytest.mark.parametrize("shard", ["0/2", "3/2", "2", "a/b", "1/0"])
def test_a_shard_that_there_is_not(mt: Mt, tiny_config: Path, tmp_path: Path, shard: str) -> None:
    ended = mt("data", "prepare", "-c", tiny_config, "--run-dir", tmp_path, "--shard", shard)
    assert says(refused(ended), "--shard", "K/N", "3/8", repr(shard))
    assert list(tmp_path.iterdir()) == []
