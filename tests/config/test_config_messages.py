"""Messages about invalid configs: one line for each fault, all of them at once.

In the tables " … " stands for any words between place, requirement, what was found, and remedy.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from messages import raises_saying, says

from mt.config.load import config_from_mapping, load_config
from mt.errors import ConfigError
from mt.removed import OFF, REMOVED

SECTIONS = "run, data, tokenizer, batch, model, optim, train, decode"


def faults(folder: Path, text: str, *sets: str) -> list[str]:
    """Return the lines of the message, with x.yaml for the path of the file."""
    path = folder / "x.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(str(path), sets)
    return str(caught.value).replace(str(path), "x.yaml").split("\n")


def test_all_faults_come_in_one_message(tmp_path: Path) -> None:
    text = """
modell: {}
model:
  d_modell: 4
  n_heads: eight
  peak_lr: 1.0e-3
optim:
  eps: 0
"""
    assert faults(tmp_path, text) == [
        "x.yaml: modell: unknown key; did you mean model?",
        "x.yaml: model.n_heads: must be a valid integer, found 'eight'",
        "x.yaml: model.d_modell: unknown key; did you mean d_model?",
        "x.yaml: model.peak_lr: unknown key; peak_lr belongs in section optim",
        "x.yaml: optim.eps: must be greater than 0, found 0",
    ]


def test_a_key_of_an_earlier_version_says_what_to_do_instead(tmp_path: Path) -> None:
    """Every one in the table, which other paths than `section.key` do not need."""
    keys = [key for key in REMOVED if re.fullmatch(r"\w+\.\w+", key) and not key.endswith("yaml")]
    assert len(keys) >= 5
    for key in keys:
        section, name = key.split(".")
        said = f"{key}: was removed in {REMOVED[key]}"
        assert faults(tmp_path, f"{section}: {{{name}: [on]}}") == [f"x.yaml: {said}"]
        assert faults(tmp_path, "run: {}", f"{key}=[on]") == [f"--set: {said}"]
        with raises_saying(ConfigError, f"meta.json: {said}"):
            config_from_mapping({section: {name: ["on"]}}, "meta.json")


def test_a_removed_key_that_is_off_is_ignored() -> None:
    keys = {
        key: OFF.get(key)
        for key in REMOVED
        if re.fullmatch(r"[a-z_.]+", key) and ".yaml" not in key
    }
    for key, value in {**keys, "data.stages.augment.caps": 0.0}.items():
        *sections, name = key.split(".")
        tree: dict[str, Any] = {name: value}
        for section in reversed(sections):
            if section == "until":
                tree["updates"] = 1
            tree = {section: [tree, {}] if section == "stages" else tree}
        if "stages" in tree.get("data", {}):
            tree["data"]["stages"][0].setdefault("until", {"updates": 1})
        if "train" in tree.get("data", {}):
            tree["data"]["train"] = [{"path": "a", **tree["data"]["train"]}]
        config_from_mapping(tree, "meta.json")


def test_message(tmp_path: Path) -> None:
    """A fault that opens with a colon follows the path of the first key in the text."""
    for text, fault in [
        # unknown keys
        ("model: {D-Model: 4}", "model.D-Model: unknown key; did you mean d_model?"),
        ("d_model: 4", "d_model: unknown key; d_model belongs in section model"),
        ("data: {src: a}", ": unknown key; src belongs in section data.train"),
        ("train: {pastience: 1}", ": unknown key; did you mean patience?"),
        (
            "data: {train: {src: a, tgt: b, wieght: 2}}",
            "data.train[0].wieght … unknown key … did you mean weight?",
        ),
        ("run: {xyz: 1}", ": unknown key; known here: dir, seed"),
        # wrong types
        ("train: {max_steps: true}", ": must be a valid integer, found true"),
        (
            "batch: {tokens_per_batch: true}",
            ": must be a valid integer or auto or null, found true",
        ),
        ("train: {max_steps: '90'}", ": must be a valid integer, found '90'"),
        (
            "train: {max_steps: }",
            ": must be a valid integer … found nothing (null) … leave the key out",
        ),
        ("optim: {eps: {a: 1}}", ": must be a valid number, found keys below it"),
        ("optim: {eps: .nan}", ": must be a finite number, found nan"),
        ("optim: {betas: 0.9}", ": must be a valid tuple, found 0.9"),
        ("optim: {betas: [0.9]}", "optim.betas[1]: is missing and has no default; add it"),
        ("tokenizer: {joint: 1}", ": must be true or false, found 1"),
        ("train: {compile: 1}", ": must be true or false or auto, found 1"),
        ("model: {norm: per}", ": must be pre or post, found 'per'; did you mean pre?"),
        ("data: {train: ''}", "data.train[0].path: must have at least 1 character"),
        (
            "data: {train: {src: a, tgt: b, format: tmx}}",
            "data.train[0].format: says how path is read, found 'tmx' without path; add path",
        ),
        (
            "data: {train: {src: a, tgt: b, split: 7}}",
            "data.train[0].split: must be text … found 7",
        ),
        (
            "data: {train: {path: a}, valid: {split: 0}}",
            "data.valid[0].split: … must be greater than or equal to 1, found 0",
        ),
        (
            "data: {train: {path: a}, test: {split: 7, src: a}}",
            "data.test[0]: … no other key … {split: 7}",
        ),
        (
            "data: {train: {path: a, directions: [de-en]}, valid: {split: 7}}",
            "data.train[0].directions: cannot stand … held out",
        ),
        (
            "data: {train: {path: a, reverse: true}, valid: {split: 7}}",
            "data.train[0]: … data.valid[0] is held out of … neither reverse nor tag",
        ),
        ("run: 5", "run: must have keys (dir, seed), found 5"),
        ("data: {train: {src: a}}", "data.train[0].tgt: is required"),
        ("data: {train: [{src: null, tgt: x}]}", "data.train[0].src: is required"),
        (
            "data: {valid: {path: d, directions: []}}",
            "data.valid[0].directions: must have at least 1 item … found an empty list",
        ),
        # limits
        ("batch: {tokens_per_batch: 0}", ": must be greater than or equal to 1, found 0"),
        ("model: {dropout: 1}", ": must be less than 1, found 1"),
        ("train: {ema: 0}", ": must be greater than 0, found 0"),
        ("decode: {beam_size: 1e7}", ": must be less than or equal to 1000000, found 10000000"),
        ("data: {max_length_ratio: 0.5}", ": must be greater than or equal to 1, found 0.5"),
        ("run: {dir: ''}", ": must have at least 1 character, found ''"),
        # traps of YAML
        ("data: {tgt_lang: true}", ": must be text … found true … put the text in quotes"),
        ("optim: {warmup_steps: 010}", ": must be a valid integer, found '010'"),
        ("train: {max_steps: 1:30}", ": must be a valid integer, found '1:30'"),
        # values that do not go together
        ("model: {d_model: 50, n_heads: 4}", ": must be even and a … (4) … found 50"),
        ("model: {max_positions: 257}", ": must be at least data.max_tokens … (258) … found 257"),
        (
            "batch: {tokens_per_batch: 256}",
            ": must be at least data.max_tokens … (257) … found 256",
        ),
        ("tokenizer: {vocab_size: 260}", ": must be above 260 (256 … found 260"),
        (
            'tokenizer: {vocab_size: 264, user_defined_symbols: [a, b, "<c>", d]}',
            ": must be above 264 (256 … found 264",
        ),
        ("tokenizer: {user_defined_symbols: [a, a]}", ": must each be there once, found 'a'"),
        (
            "tokenizer: {user_defined_symbols: ['a b']}",
            ": must be texts without white … found 'a b'",
        ),
        (
            "tokenizer: {user_defined_symbols: ['</s>']}",
            ": must not be special tokens … found '</s>'",
        ),
        ("tokenizer: {tgt_model: b}", ": must be null where … null … found 'b'"),
        ("tokenizer: {model: a, tgt_model: b}", "tokenizer.tgt_model … be null where … found 'b'"),
        (
            "tokenizer: {model: a, joint: false}",
            "tokenizer.tgt_model … must be the target's model file … found nothing (null)",
        ),
        (
            "tokenizer: {model: a, split_digits: false}",
            "tokenizer.split_digits … must be left out with tokenizer.model, … found false",
        ),
        (
            "tokenizer: {model: a}\ntrain: {init_from: b}",
            ": must be null with train.init_from, … found 'a' … true to replace it",
        ),
        ("train: {new_vocabulary: true}", ": must be false without train.init_from … found true"),
        ("optim: {schedule: noam}", "optim.peak_lr … must be null with schedule … found 0.0007"),
        ("optim: {peak_lr: null}", ": must be a number with … found nothing (null)"),
        (
            "optim: {schedule: cosine}\ntrain: {max_steps: 4000}",
            "optim.warmup_steps … must be below train.max_steps (4000) … found 4000; lower it",
        ),
        (
            "optim: {schedule: cosine, warmup_steps: 18}\ntrain: {max_steps: 18}",
            "optim.warmup_steps … below train.max_steps (18) … cosine, found 18",
        ),
        (
            "data: {valid: {src: a, tgt: b, delimiter: ';'}}",
            "data.valid[0].delimiter … says how path is read, found ';' without path",
        ),
        ("data: {test: {src: a, tgt: b, weight: 3}}", "data.test[0].weight … found 3"),
        # not YAML, or not a config
        ("", f"must have sections ({SECTIONS}), found an empty file"),
        ("- a", f"must have sections ({SECTIONS}), found a list"),
        (
            "model:\n  d_ff: 8\n  norm: pre\n  d_ff: 9",
            "line 4, column 3: not valid YAML … the key d_ff is there already; check this line",
        ),
        ("model:\n\td_ff: 8", "line 2, column 1: not valid YAML … found character '\\t'"),
        (
            "run:\n  dir: a: b",
            "line 2, column 9: not valid YAML … mapping values … check this line",
        ),
        ("run: [", "line 1, column 7: not valid YAML … found '<stream end>' … check this line"),
        ("? [a]\n: 1", "line 1, column 3: not valid YAML … a key must be a word … check this line"),
        ("run:\n  dir: \x07", "not valid YAML: unacceptable character #x0007"),
        (f"run: {{seed: {'9' * 5000}}}", "not valid YAML: Exceeds the limit"),
        ("a: !!int ''", "not valid YAML: string index out of range; write the value otherwise"),
        ("a: &a [*a]", "not valid YAML: Circular reference … write the value otherwise"),
        (f"run: {{seed: {2**63}}}", "run.seed: must be less than or equal to 92233"),
        # YAML that is valid and not what was meant
        ("optimizer: {lr: 1}", "optimizer: unknown key; did you mean optim?"),
        ("foo: {}", f"foo: unknown key; known here: {SECTIONS}, recipe"),
        ("train: {epochs: 9}", ": unknown key; did you mean max_epochs?"),
        ("run:\n  - dir: a\n  - seed: 1", "run … must have keys (dir, seed) … found a list"),
        ("run:\n  seed:3", "run … must have keys (dir, seed) … found 'seed:3'"),
        ("train: {patience: None}", ": must be a valid integer or null, found 'None'"),
        ("model: {dropout: none}", ": must be a valid number or auto, found 'none'"),
        ("data: {dedupe: 'false'}", ": must be true or false, found 'false'"),
        # YAML that is not valid
        (
            'data: {root: "C:\\data"}',
            "line 1, column 18: not valid YAML … unknown escape character 'd'",
        ),
        (
            "data:\n  root: 'here\n  src_lang: de",
            "line 3, column 15: not valid YAML … found unexpected end of stream … from line 2",
        ),
        (
            "run:\n  dir: a\n seed: 1",
            "line 3, column 2: not valid YAML … found '<block mapping start>'",
        ),
        ("run: {}\n---\ndata: {}", "line 2, column 1: not valid YAML … found another document"),
    ]:
        (message,) = faults(tmp_path, text)
        path = ".".join(re.findall(r"\w+", text)[:2]) if fault.startswith(": ") else ""
        assert says(message, f"x.yaml: {path}", *fault.split(" … "))
        assert not re.search(r"found '(.+)'; did you mean \1\?", message)


def test_windows_files_load(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfdata:\r\n  root: C:\\new\\text\r\n  src_lang: 'de'\r\n")
    data = load_config(str(path)).config.data
    assert (data.root, data.src_lang) == ("C:\\new\\text", "de")


def test_combinations_are_checked_beside_faulty_sections(tmp_path: Path) -> None:
    text = "run: {sed: 1}\nmodel: {d_model: 50, n_heads: 4}\nbatch: {tokens_per_batch: 8}"
    assert faults(tmp_path, text) == [
        "x.yaml: run.sed: unknown key; did you mean seed?",
        "x.yaml: model.d_model: must be even and a multiple of model.n_heads (4), found 50",
        "x.yaml: batch.tokens_per_batch: must be at least data.max_tokens + 1 (257), found 8",
    ]


def test_bytes_that_are_left_to_another_model_do_not_count() -> None:
    config_from_mapping({"tokenizer": {"vocab_size": 200}, "train": {"init_from": "a"}}, "x")


def test_long_values_are_cut_in_messages(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, f"model: {{n_heads: {'x' * 900}}}")
    assert len(fault) < 130
    assert fault.endswith("xxx...")


def test_code_in_yaml_is_not_run(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, "a: !!python/object/apply:os.getcwd []")
    assert fault.startswith("x.yaml: line 1, column 4: not valid YAML: could not determine")


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin1.yaml"
    path.write_bytes("run:\n  seed: 2\n  dir: Läufe\n".encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        load_config(str(path))
    assert str(caught.value) == (
        f"{path}: line 3: must be UTF-8 text, found other bytes; save the file as UTF-8"
    )


# --- settings from the command line -----------------------------------------------------------


def test_message_about_a_setting(tmp_path: Path) -> None:
    text = "data: {train: {src: a, tgt: b}, test: [x, y]}\nmodel: {d_ff: 64}"
    for setting, fault in [
        ("model.d_modell=3", "--set: model.d_modell: unknown key; did you mean d_model?"),
        ("d_model=3", "--set: d_model: unknown key; d_model belongs in section model"),
        ("optim.d_ff=3", "--set: optim.d_ff: unknown key; d_ff belongs in section model"),
        ("model.d_model=big", "--set: model.d_model … must be a valid integer … found 'big'"),
        ("model.n_heads=7", "--set: model.d_model … must be even and a … (7) … found 512"),
        (
            "run.dir=2024",
            "--set: run.dir … must be text … found 2024 … as in --set \"run.dir='...'\"",
        ),
        ("optim.eps=nan", "--set: optim.eps: must be a valid number, found 'nan'"),
        *(
            (wrong, f"--set {wrong}: must be section.key=value, such as optim.peak_lr=1e-3")
            for wrong in ("model.d_ff", "=3", "model..d_ff=3", "model.=3", "data.train[x].src=3")
        ),
        (
            "model={d_ff: 3}",
            "--set model={d_ff: 3} … must name one key … a whole section … model.KEY=value",
        ),
        ("data.test.src=c", "--set data.test.src=c … no src in data.test … such as data.test[0]"),
        ("data.train[2].src=c", "--set data.train[2].src=c … has 1 entries … set data.train[1]"),
        (
            "model.d_ff.x=3",
            "--set model.d_ff.x=3 … there is no x in model.d_ff; set model.d_ff itself",
        ),
        ("model.d_ff=[1", "--set model.d_ff=[1 … line 1, column 3: not valid … check this line"),
        (
            "data.valid={src: a, src: b, tgt: c}",
            "--set data.valid={src … a, src: b, tgt: c}: line … the key src is there already",
        ),
    ]:
        (message,) = faults(tmp_path, text, setting)
        assert says(message, *fault.split(" … "))


def test_faults_of_file_and_settings_come_together(tmp_path: Path) -> None:
    assert faults(tmp_path, "model: {d_fff: 1}", "nonsense", "run.seed=-1") == [
        "--set nonsense: must be section.key=value, such as optim.peak_lr=1e-3",
        "--set: run.seed: must be greater than or equal to 0, found -1",
        "x.yaml: model.d_fff: unknown key; did you mean d_ff?",
    ]
