"""The user's own vocabulary: SentencePiece models made elsewhere, and settings of learning one."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import BLIND, Mt, QuickConfig, metrics_of, refused
from messages import raises_saying
from subwords import made_lines
from token_stores import tokenizer_of

from mt.config.schema import TokenizerConfig
from mt.data.tokens.tokenizer import Tokenizer, own_tokenizer
from mt.errors import CheckpointError, DataError
from mt.training.launch import train

IDS = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}


def spm(**settings: Any) -> bytes:
    """A model of SentencePiece's own trainer: 60 tokens, and ids that fit unless `settings` say."""
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    options: dict[str, Any] = {"vocab_size": 60, "hard_vocab_limit": False, "minloglevel": 2}
    options |= {"model_type": "bpe"} | IDS | settings
    SentencePieceTrainer.train(sentence_iterator=iter(made_lines()), model_writer=model, **options)
    return model.getvalue()


def learned(**keys: Any) -> Tokenizer:
    cfg = TokenizerConfig.model_validate({"vocab_size": 340, **keys})
    return tokenizer_of(cfg, ((line, line) for line in made_lines()))


# --- settings of learning one -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("line", ["<br>", "a<br>b", "Hund <br> Katze", "x {name}<br>{name} y"])
def test_user_defined_symbols_are_one_token_each(kind: str, line: str) -> None:
    tokenizer = learned(type=kind, user_defined_symbols=["<br>", "{name}"])
    pieces = tokenizer.src.pieces(line)
    assert pieces.count("<br>") == line.count("<br>")
    assert pieces.count("{name}") == line.count("{name}")
    assert tokenizer.tgt.decode(tokenizer.tgt.encode([line])) == [line]


def test_digits_stay_together_where_asked() -> None:
    pairs = [("im Jahr 1987", "in 1987")] * 50
    for split in (True, False):
        cfg = TokenizerConfig(vocab_size=320, split_digits=split)
        assert ("▁1987" in tokenizer_of(cfg, pairs).src.pieces("1987")) is not split


def test_characters_below_the_coverage_are_bytes() -> None:
    pairs = [("ab " * 60, "ab " * 60), ("aß", "ab")]
    for coverage, piece in ((1.0, "ß"), (0.98, "<0xC3>")):
        cfg = TokenizerConfig(vocab_size=270, character_coverage=coverage)
        assert piece in tokenizer_of(cfg, pairs).src.pieces("ß")


def test_a_vocabulary_too_small_for_its_symbols_says_what_it_needs() -> None:
    with pytest.raises(DataError) as caught:
        learned(vocab_size=270, user_defined_symbols=["<a>", "<b>"], character_coverage=1.0)
    message = str(caught.value)
    assert message.startswith("tokenizer.vocab_size: the vocabulary needs at least ")
    assert "(262 symbols, " in message


# --- a model of one's own ---------------------------------------------------------------------


def own(folder: Path, model: bytes, **keys: Any) -> TokenizerConfig:
    (folder / "own.model").write_bytes(model)
    return TokenizerConfig.model_validate({"model": str(folder / "own.model"), **keys})


def test_a_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    for model, said in [
        (
            lambda: spm(pad_id=-1, unk_id=0, bos_id=1, eos_id=2),
            ["ids 0, 1, 2 and 3", "found -1, 0, 1 and 2", "mt tokenizer train", "--eos_id=3"],
        ),
        (
            lambda: spm(treat_whitespace_as_suffix=True),
            ["treat_whitespace_as_suffix", "Train it again"],
        ),
        (lambda: b"<unk>\t0\n", ["not a SentencePiece model", ".model", "mt tokenizer train"]),
        (lambda: b"", ["not a SentencePiece model", ".model", "mt tokenizer train"]),
    ]:
        cfg = own(tmp_path, model())
        with raises_saying(DataError, f"tokenizer.model: {tmp_path}/own.model", *said):
            own_tokenizer(cfg)
    cfg = own(tmp_path, spm(), tgt_model=str(tmp_path), joint=False)
    with pytest.raises(DataError, match=f"tokenizer.tgt_model: {tmp_path} is a folder"):
        own_tokenizer(cfg)


def test_training_takes_models_of_ones_own(quick_config: QuickConfig, tmp_path: Path) -> None:
    """Two vocabularies, the target's with SentencePiece's own normalisation; and resumed without.

    The models are copied into the run directory and not read again.
    """
    models = {"model": spm(vocab_size=50), "tgt_model": spm(normalization_rule_name="nmt_nfkc")}
    for key, content in models.items():
        (tmp_path / f"{key}.model").write_bytes(content)
    keys = {key: str(tmp_path / f"{key}.model") for key in models}
    few: dict[str, Any] = {"max_steps": 2, "valid_every": 2, "log_every": 1}
    config = quick_config(BLIND, tokenizer={"joint": False, **keys}, train=few)
    run_dir = tmp_path / "run"
    assert train(config, run_dir, "cpu").exit_code == 0
    assert (run_dir / "tokenizer.src.model").read_bytes() == models["model"]
    assert (run_dir / "tokenizer.tgt.model").read_bytes() == models["tgt_model"]
    for key in models:
        (tmp_path / f"{key}.model").unlink()
    more = few | {"max_steps": 4, "valid_every": 4}
    config = quick_config(BLIND, tokenizer={"joint": False, **keys}, train=more)
    assert train(config, run_dir, "cpu").exit_code == 0
    assert [line["step"] for line in metrics_of(run_dir, "train")] == [1, 2, 3, 4]
    other = quick_config(BLIND, tokenizer={"joint": False, **keys, "model": "b"}, train=few)
    with pytest.raises(CheckpointError, match=r"\(tokenizer\.model: was .*, now b\)"):
        train(other, run_dir, "cpu")


def test_a_check_of_the_config_opens_the_model(
    mt: Mt, tiny_config: Path, tiny_run: Path, tmp_path: Path
) -> None:
    check = ("config", "check", "--config", tiny_config, "--set")
    good = mt(*check, f"tokenizer.model={tiny_run / 'tokenizer.model'}")
    assert good.code == 0, good.err
    shutil.copy(tiny_run / "config.yaml", tmp_path)
    message = refused(mt(*check, f"tokenizer.model={tmp_path / 'config.yaml'}"))
    assert "is not a SentencePiece model that can be loaded" in message


def test_a_symbol_may_be_any_character(mt: Mt, tiny_config: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.model"
    symbol = ("--set", "tokenizer.user_defined_symbols=[😀]")
    assert mt("tokenizer", "train", "--config", tiny_config, *symbol, "-o", own).code == 0
    assert "😀" in Tokenizer(own.read_bytes()).src.all_pieces()
