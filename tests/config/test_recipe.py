"""`recipe: NAME` in a config: what is taken from a shipped config, and what is refused."""

from __future__ import annotations

from pathlib import Path

from messages import raises_saying

from mt.config.load import Loaded, load_config
from mt.config.schema import Config, DataConfig, TextEntry, json_schema
from mt.errors import ConfigError


def load(folder: Path, text: str, *sets: str) -> Loaded:
    path = folder / "x.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(str(path), sets)


def test_a_recipe_gives_what_the_file_leaves_out(tmp_path: Path) -> None:
    """Key by key; what names the data is never taken, as the texts of tiny.yaml here."""
    text = "recipe: tiny.yaml\nmodel: {d_model: 32, dropout: 0.1}\ndata: {train: {src: a, tgt: b}}"
    loaded = load(tmp_path, text, "optim.peak_lr=1e-3")
    config, tiny = loaded.config, load_config("tiny.yaml").config
    assert config.data == DataConfig(train=[TextEntry(src="a", tgt="b")], max_tokens=128)
    assert config.model == tiny.model.model_copy(update={"d_model": 32, "dropout": 0.1})
    assert config.optim == tiny.optim.model_copy(update={"peak_lr": 1e-3})
    assert (config.train, config.tokenizer) == (tiny.train, tiny.tokenizer)
    origins = loaded.origins
    assert (origins["data.max_tokens"], origins["model.d_ff"]) == ("tiny.yaml", "tiny.yaml")
    assert (origins["model.d_model"], origins["optim.peak_lr"]) == ("x.yaml", "--set")
    assert not {"data.src_lang", "model.norm"} & origins.keys()
    assert "recipe" not in config.to_yaml()
    assert "recipe" in json_schema()["properties"]


def test_a_recipe_on_the_command_line_replaces_that_of_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, "recipe: tiny.yaml", "recipe=small").config
    assert config.train.max_epochs == load_config("small.yaml").config.train.max_epochs
    assert load(tmp_path, "recipe: tiny.yaml", "recipe=null").config == Config()


def test_a_recipe_has_what_its_own_recipe_gives(tmp_path: Path) -> None:
    ours, multi30k = load(tmp_path, "recipe: multi30k").config, load_config("multi30k").config
    assert (ours.model, ours.optim, ours.train) == (multi30k.model, multi30k.optim, multi30k.train)


def test_faults_of_recipes_and_auto(tmp_path: Path) -> None:
    for text, sets, parts in [
        ("recipe: smal", [], ["x.yaml: recipe:", "base.yaml, ", "found 'smal'", "mean small.yaml"]),
        ("recipe: iwslt14.yaml", [], ["found 'iwslt14.yaml'", "removed", "medium.yaml"]),
        ("recipe: false", [], ["x.yaml: recipe: ", "found false"]),
        ("run: {seed: 2}", ["recipe=9"], ["--set: recipe: ", "shipped config", "found 9"]),
        ("run: {seed: 2}", ["recipe=[a"], ["--set recipe=[a: ", "not valid YAML"]),
        ("recipie: small.yaml", [], ["recipie: unknown key; did you mean recipe?"]),
        ("recipe: tiny\nmodel: 3", [], ["x.yaml (recipe tiny.yaml): model: must have", "found 3"]),
        ("tokenizer: {vocab_size: atuo}", [], ["tokenizer.vocab_size", "valid integer or auto"]),
        ("model: {dropout: 1.5}", [], ["model.dropout: must be less than 1, found 1.5"]),
    ]:
        with raises_saying(ConfigError, *parts):
            load(tmp_path, text, *sets)
