"""The config: every shipped file, every message, every way in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import MonkeyPatch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mt.config.load import (
    Loaded,
    config_from_mapping,
    load_config,
    require_training_data,
    shipped_configs,
    with_origins,
)
from mt.config.plan import plan_data, with_held_out_files
from mt.config.schema import Config, DataConfig, TextEntry, json_schema
from mt.errors import ConfigError

ROOT = Path(__file__).parents[2]
SECTIONS = ["run", "data", "tokenizer", "batch", "model", "optim", "train", "decode"]


def load(folder: Path, text: str, *sets: str) -> Loaded:
    path = folder / "x.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(str(path), sets)


def flat(tree: dict[str, Any]) -> dict[str, Any]:
    """{"model": {"d_ff": 1}} → {"model.d_ff": 1}."""
    return {f"{name}.{key}": value for name, keys in tree.items() for key, value in keys.items()}


# --- shipped configs --------------------------------------------------------------------------


def test_shipped_configs() -> None:
    assert shipped_configs() == [
        "base.yaml", "chiasson-vaila.yaml", "coding-details.yaml", "finetune.yaml", "medium.yaml",
        "multi30k.yaml", "small.yaml", "tiny-post.yaml", "tiny.yaml", "vaswani2017.yaml",
        "wmt14.yaml",
    ]  # fmt: skip


@pytest.mark.parametrize("name", shipped_configs())
def test_shipped_configs_can_train(name: str, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # found from any folder
    loaded = load_config(name)
    assert loaded.name == name.removesuffix(".yaml")
    assert loaded == load_config(loaded.name)
    if name in ("small.yaml", "medium.yaml", "finetune.yaml"):  # recipes for any data
        return
    require_training_data(loaded.config)
    assert loaded.config.data.test


def test_base_lists_every_key_at_its_default() -> None:
    listed = yaml.safe_load((ROOT / "configs/base.yaml").read_text(encoding="utf-8"))
    assert list(listed) == SECTIONS
    for section in SECTIONS:
        model = Config.model_fields[section].annotation
        assert list(listed[section]) == list(model.model_fields), section  # type: ignore[union-attr]
    assert list(listed["data"]["train"][0]) == list(TextEntry.model_fields)

    own = {"data.src_lang", "data.tgt_lang", "data.train", "data.valid", "data.test"}
    base = flat(load_config("base.yaml").config.model_dump())
    assert {key for key in base if base[key] != flat(Config().model_dump())[key]} == own
    assert {key for key in TextEntry.model_fields if key not in ("src", "tgt")} == {
        key
        for key, value in base["data.train"][0].items()
        if value == TextEntry.model_fields[key].default
    }


@pytest.mark.parametrize("name", [name for name in shipped_configs() if name != "base.yaml"])
def test_recipe_lists_only_what_differs_from_the_defaults(name: str) -> None:
    loaded = load_config(name)
    resolved, default = loaded.config.model_dump(mode="json"), Config().model_dump(mode="json")
    for path, origin in loaded.origins.items():
        section, key = path.split(".")
        assert origin != name or resolved[section][key] != default[section][key], path


def test_vaswani2017_is_the_paper() -> None:
    """Table 3, row "base", and sections 5.1 to 6.1 of Vaswani et al. (2017)."""
    config = load_config("vaswani2017.yaml").config
    model, optim = config.model, config.optim
    assert (model.n_encoder_layers, model.n_decoder_layers) == (6, 6)
    assert (model.d_model, model.d_ff, model.n_heads, model.dropout) == (512, 2048, 8, 0.1)
    assert (model.norm, model.positions, model.activation) == ("post", "sinusoidal", "relu")
    assert (model.tie_embeddings, model.attention_bias, model.output_bias) == (True, False, False)
    assert (config.tokenizer.type, config.tokenizer.vocab_size) == ("bpe", 37000)
    assert config.tokenizer.joint
    assert (optim.schedule, optim.warmup_steps, optim.peak_lr) == ("noam", 4000, None)
    assert (optim.betas, optim.eps) == ((0.9, 0.98), 1e-9)
    assert (optim.label_smoothing, optim.clip_norm, optim.weight_decay) == (0.1, None, 0.0)
    assert (config.batch.tokens_per_update, config.train.max_steps) == (25000, 100_000)
    assert config.train.keep_last == 5
    assert (config.decode.beam_size, config.decode.length_penalty) == (4, 0.6)
    assert (config.decode.max_len_factor, config.decode.max_len_extra) == (1.0, 50)


def test_chiasson_vaila_is_the_document() -> None:
    """`attention-and-transformers-background.txt`, as far as it states values."""
    config = load_config("chiasson-vaila.yaml").config
    model, optim = config.model, config.optim
    assert (model.d_model, model.n_heads, model.d_ff) == (512, 8, 1024)
    assert (model.norm, model.activation, model.positions) == ("post", "relu", "sinusoidal")
    assert (model.attention_bias, model.output_bias, model.tie_embeddings) == (False, False, False)
    assert (model.dropout, model.attention_dropout, model.activation_dropout) == (0.0, 0.0, None)
    assert (config.tokenizer.joint, config.tokenizer.vocab_size) == (False, 10_000)
    assert (config.data.src_lang, config.data.tgt_lang) == ("fr", "en")
    assert optim.label_smoothing == 0.0
    assert config.decode.beam_size == 1


def test_the_run_directory_is_named_after_the_file_or_in_it() -> None:
    assert load_config("tiny.yaml").run_dir == Path("runs/tiny")
    assert load_config("tiny.yaml", ["run.dir=~/r"]).run_dir == Path.home() / "r"


def test_coding_details_is_the_document() -> None:
    """`transformer-coding-details.txt`, as far as it states values; the rest is the 2017 base."""
    config = load_config("coding-details.yaml").config
    model = config.model
    assert (model.d_model, model.n_heads, model.d_ff) == (512, 8, 2048)
    assert (model.norm, model.activation, model.positions) == ("pre", "relu", "sinusoidal")
    assert (model.attention_bias, model.output_bias, model.tie_embeddings) == (True, True, False)
    assert not config.tokenizer.joint
    assert (config.data.src_lang, config.data.tgt_lang) == ("de", "en")
    assert config.decode.beam_size == 1


# --- what is accepted -------------------------------------------------------------------------


def test_numbers_in_every_spelling(tmp_path: Path) -> None:
    text = """
optim: {peak_lr: 1e-4, eps: 1E-9, warmup_steps: 4e3, clip_norm: 2, betas: [0, .98]}
train: {max_steps: 100_000, valid_every: 500.0}
"""
    config = load(tmp_path, text).config
    assert (config.optim.peak_lr, config.optim.eps) == (1e-4, 1e-9)
    assert (config.optim.warmup_steps, config.train.max_steps) == (4000, 100_000)
    assert (config.optim.clip_norm, config.optim.betas) == (2.0, (0.0, 0.98))
    assert type(config.train.valid_every) is int
    assert type(config.optim.clip_norm) is float


def test_text_that_looks_like_a_time_an_octal_a_date_or_thousands_is_text(tmp_path: Path) -> None:
    text = "data: {src_lang: 12:30, tgt_lang: 010, test: 2024_01}\nrun: {dir: 2026-11-20}"
    config = load(tmp_path, text).config
    assert config.data.test[0].path == "2024_01"
    assert (config.data.src_lang, config.data.tgt_lang) == ("12:30", "010")
    assert config.run.dir == "2026-11-20"


@pytest.mark.parametrize("text", ["no", "'no'", "NO", "on", "yes"])
def test_norwegian_is_text(text: str, tmp_path: Path) -> None:
    """YAML 1.1 reads an unquoted no as false."""
    in_file = load(tmp_path, f"data: {{tgt_lang: {text}}}")
    by_setting = load(tmp_path, "data:", f"data.tgt_lang={text}")
    assert in_file.config.data.tgt_lang == by_setting.config.data.tgt_lang == text.strip("'")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("yes", True), ("On", True), ("true", True), ("no", False), ("OFF", False), ("False", False)],
)
def test_switches_take_the_words_of_yaml_1_1(text: str, expected: bool, tmp_path: Path) -> None:
    config = load(tmp_path, f"data: {{dedupe: {text}}}\ntrain: {{compile: {text}}}").config
    assert config.data.dedupe is expected
    assert config.train.compile is expected


def test_empty_sections_and_windows_byte_order_mark(tmp_path: Path) -> None:
    assert load(tmp_path, "\ufeffmodel:\nrun: {}\n").config == Config()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("{src: a, tgt: b}", [TextEntry(src="a", tgt="b")]),
        ("[{src: a, tgt: b}]", [TextEntry(src="a", tgt="b")]),
        ("null", []),
        ("[]", []),
    ],
)
def test_one_text_or_many(tmp_path: Path, given: str, expected: list[TextEntry]) -> None:
    config = load(tmp_path, f"data: {{train: {given}, test: {given}}}").config
    assert config.data.train == expected
    assert config.data.test == expected


def test_an_alias_is_a_copy(tmp_path: Path) -> None:
    text = "data: {train: [&one {src: a, tgt: b}], valid: *one}"
    data = load(tmp_path, text, "data.valid[0].src=c").config.data
    assert data == DataConfig(
        train=[TextEntry(src="a", tgt="b")], valid=[TextEntry(src="c", tgt="b")]
    )


# --- finding the file -------------------------------------------------------------------------


def test_a_file_goes_before_a_shipped_config(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text("run: {seed: 7}", encoding="utf-8")
    assert load_config("base.yaml").config.run.seed == 7
    assert load_config("base").config.run.seed == 1


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("tinny", "found neither; did you mean tiny.yaml?"),
        (
            "iwslt14.yaml",
            "found neither; iwslt14.yaml was removed in 0.3.0: nobody had measured it; "
            "take recipe: medium.yaml",
        ),
        ("multi30.yml", "found neither; did you mean multi30k.yaml?"),
        ("elsewhere/base.yaml", "found neither; did you mean base.yaml?"),
        ("zzz", "found neither"),
        ("empty", "found a folder"),
    ],
)
def test_missing_config(name: str, found: str, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    with pytest.raises(ConfigError) as caught:
        load_config(name)
    shipped = ", ".join(shipped_configs())
    assert str(caught.value) == (
        f"--config {name}: must be a file or the name of a shipped config ({shipped}), {found}"
    )


# --- settings from the command line -----------------------------------------------------------


def test_settings_go_before_the_file_and_the_file_before_defaults(tmp_path: Path) -> None:
    loaded = load(
        tmp_path, "data: {train: {src: a, tgt: b}}\nmodel: {n_heads: 4, d_ff: 64}",
        "model.d_ff=1e2", "train.ema=0.5", "train.ema=null", "data.train[0].src=x=y",
        "data.train[1].src=c", "data.train[1].tgt=d", "data.test={src: e, tgt: f}",
        "optim.betas=[0.8, 0.9]",
    )  # fmt: skip
    config, origins = loaded.config, loaded.origins
    assert (config.model.n_heads, config.model.d_ff, config.model.d_model) == (4, 100, 512)
    assert config.train.ema is None
    assert config.data.train == [TextEntry(src="x=y", tgt="b"), TextEntry(src="c", tgt="d")]
    assert config.data.test == [TextEntry(src="e", tgt="f")]
    assert config.optim.betas == (0.8, 0.9)
    assert (loaded.name, loaded.path) == ("x", tmp_path / "x.yaml")

    assert origins == {
        "model.n_heads": "x.yaml", "model.d_ff": "--set", "train.ema": "--set",
        "data.train": "x.yaml, --set", "data.test": "--set", "optim.betas": "--set",
    }  # fmt: skip


# --- saving and the schema --------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped_configs())
def test_saved_config_loads_as_it_was(name: str, tmp_path: Path) -> None:
    config = load_config(name, ["data.tgt_lang='no'", "optim.eps=1e-30"]).config
    assert load(tmp_path, config.to_yaml()).config == config
    assert config_from_mapping(config.model_dump(mode="json"), "meta.json") == config


@settings(deadline=None)
@example(text="\x85", number=1e-300)  # a line's end that PyYAML would fold into a space
@given(
    text=st.text(st.characters(codec="utf-8"), min_size=1),
    number=st.floats(min_value=1e-300, max_value=1e300),
)
def test_any_text_and_number_survive_saving(
    tmp_path_factory: pytest.TempPathFactory, text: str, number: float
) -> None:
    config = config_from_mapping(
        {"data": {"src_lang": text, "train": {"src": text, "tgt": "b"}}, "optim": {"eps": number}},
        "here",
    )
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(config.to_yaml().encode())
    assert load_config(str(path)).config == config


def test_a_long_text_is_shown_in_one_line_that_reads_back(tmp_path: Path) -> None:
    loaded = load(tmp_path, f"run: {{dir: {'a long name ' * 20}}}")
    assert load(tmp_path, with_origins(loaded)).config == loaded.config


def test_every_key_is_described_in_one_phrase() -> None:
    schema = json_schema()
    definitions = {"Config": schema, **schema["$defs"]}
    parts = ("Config", "Source", "Clean", "Augment", "TrainingStage", "Until")
    assert len(definitions) == len(parts) + len(SECTIONS)
    for owner, definition in definitions.items():
        assert definition["additionalProperties"] is False
        for key, field in definition["properties"].items():
            description = field["description"]
            assert 10 < len(description) < 200, f"{owner}.{key}"
            assert not re.search(r"\.$|\bdefault\b", description), f"{owner}.{key}: {description}"


def test_schema_holds_defaults_limits_and_choices() -> None:
    definitions = json_schema()["$defs"]
    dropout = definitions["ModelConfig"]["properties"]["dropout"]
    number, auto = dropout["anyOf"]
    assert (dropout["default"], number["minimum"], number["exclusiveMaximum"]) == (0.1, 0, 1)
    assert auto["const"] == "auto"
    assert definitions["ModelConfig"]["properties"]["norm"]["enum"] == ["pre", "post"]
    assert definitions["TextEntry"]["anyOf"] == [
        {"required": ["src", "tgt"]}, {"required": ["path"]}, {"required": ["split"]},
    ]  # fmt: skip
    source = [{"$ref": "#/$defs/TextEntry"}, {"type": "string"}]
    for key in ("train", "valid", "test"):
        kinds = definitions["DataConfig"]["properties"][key]["anyOf"]
        assert kinds == [
            {"type": "array", "items": {"anyOf": source}}, {"anyOf": source}, {"type": "null"}
        ]  # fmt: skip


def test_a_set_that_is_held_out_has_the_languages_of_the_training_text(tmp_path: Path) -> None:
    text = (
        "data: {language_tokens: true, valid: {split: 9}, train: "
        "[{path: a, src_lang: de, tgt_lang: fr}, {path: b, src_lang: fr, tgt_lang: de}]}"
    )
    (valid,) = plan_data(with_held_out_files(load(tmp_path, text).config, tmp_path).data).valid
    assert valid.direction == ("de", "fr")
    assert valid.source.src == str(tmp_path / "valid-0.src")
