"""Test sets by their names: sacreBLEU's cache is filled by the tests, so nothing is fetched."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import sacrebleu
import yaml
from conftest import Mt, lines_of, refused, write_lines
from messages import says

from mt.data.reading.test_sets import fetched_files
from mt.runs.metrics import metrics_lines

# Fields of sacreBLEU's text files beside source and references.
OTHER_FIELDS = "docid", "genre", "origlang"
SIGNED = "|test:wmt20|lang:de-en|"
Fill = Callable[..., Path]


@pytest.fixture
def fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fill:
    """`fill("wmt20", "de-en", lines, lines)`: the folder of a set in the cache of sacreBLEU."""

    def no_network(url: str, *_: Any, **__: Any) -> None:
        if "17" in url:
            raise SystemExit(1)  # as for a wrong MD5
        raise URLError("no network in tests")

    cache = tmp_path / "sacrebleu"
    monkeypatch.setattr(sacrebleu, "SACREBLEU_DIR", str(cache))
    monkeypatch.setattr("sacrebleu.dataset.base.download_file", no_network)
    monkeypatch.setattr("datasets.load_dataset", no_network)
    for name, data_set in sacrebleu.DATASETS.items():
        monkeypatch.setattr(data_set, "_outdir", str(cache / name))
        monkeypatch.setattr(data_set, "_rawdir", str(cache / name / "raw"))

    def filled(name: str, pair: str, src: Sequence[str], *refs: Sequence[str]) -> Path:
        fields = {"src": src, **dict.fromkeys(OTHER_FIELDS, ["a"] * len(src))}
        if len(refs) == 1:
            fields["ref"] = refs[0]
        else:
            fields |= {f"ref-{number}": ref for number, ref in enumerate(refs)}
        (cache / name).mkdir(parents=True, exist_ok=True)
        for field, lines in fields.items():
            path = cache / name / f"{name.replace('/', '_')}.{pair}.{field}"
            write_lines(path, list(lines))
        return cache / name

    return filled


@pytest.fixture
def wmt20(fill: Fill, tiny_corpus: Path) -> Path:
    """The test set of the tiny corpus as wmt20 de-en."""
    src, tgt = (lines_of(tiny_corpus / f"test.{side}") for side in ("src", "tgt"))
    return fill("wmt20", "de-en", src, tgt)


def test_the_files_of_a_set_are_known_without_fetching_it(
    fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sacrebleu, "get_source_file", lambda *_: pytest.fail("fetched"))
    assert fetched_files("wmt20", ("de", "en")) == []


def test_outputs_are_scored_on_a_named_set(wmt20: Path, fill: Fill, tmp_path: Path, mt: Mt) -> None:
    src, ref = (lines_of(wmt20 / f"wmt20.de-en.{field}") for field in ("src", "ref"))
    write_lines(tmp_path / "h.en", [f"{line} one" for line in ref])
    hyp = "evaluate", "--hyp", tmp_path / "h.en", "--json", "--metrics"
    by_name = json.loads(mt(*hyp, "bleu", "--test-set", "wmt20", "--langs", "de-en").out)
    by_file = json.loads(mt(*hyp, "bleu", "--ref", wmt20 / "wmt20.de-en.ref").out)
    (score,), (of_files,) = (next(iter(systems.values())) for systems in (by_name, by_file))
    assert score["value"] == of_files["value"]
    metric = sacrebleu.BLEU()
    metric.corpus_score(ref, [ref])
    signature = metric.get_signature()
    signature.update("test", "wmt20")
    signature.update("lang", "de-en")
    assert score["signature"] == str(signature)
    # Codes of three letters; two references; the tokenizer of the target language.
    fill("wmt20/tworefs", "zh-en", src, ref, ref)
    given = "--test-set", "wmt20/tworefs", "--langs", "zho-eng"
    assert says(mt(*hyp, "bleu", *given).out.decode(), "nrefs:2|test:wmt20/tworefs|lang:zh-en|")
    fill("wmt20", "en-zh", ref, src)
    chinese = mt(*hyp, "bleu", "--test-set", "wmt20", "--langs", "en-zh").out.decode()
    assert says(chinese, "lang:en-zh|", "tok:zh")


def test_a_config_names_sets(
    wmt20: Path, fill: Fill, tiny_mapping: dict[str, Any], tiny_corpus: Path, tmp_path: Path, mt: Mt
) -> None:
    src, tgt = (lines_of(tiny_corpus / f"valid.{side}") for side in ("src", "tgt"))
    fill("wmt19", "de-en", src, tgt)
    test_src, test_tgt = (lines_of(wmt20 / f"wmt20.de-en.{field}") for field in ("src", "ref"))
    train = {}
    for side, leak, other in (("src", test_src, src), ("tgt", test_tgt, tgt)):
        lines = lines_of(tiny_corpus / f"train.{side}")[:300] + leak[:3] + other[:2]
        train[side] = str(tmp_path / f"train.{side}")
        write_lines(Path(train[side]), lines)
    named = {"train": [train], "valid": {"test_set": "wmt19"}, "test": [{"test_set": "wmt20"}]}
    changes = {"data": tiny_mapping["data"] | named | {"clean": {"leaks": "pairs"}}}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(tiny_mapping | changes), encoding="utf-8")
    stats = mt("data", "stats", "--config", config)
    leaks = f"leaks of {{}}: of {len(src)} sentences"
    assert says(stats.out.decode(), leaks.format("data.valid[0]"), leaks.format("data.test[0]"))
    cleaned = mt("data", "clean", "--config", config, "-o", tmp_path / "clean", "--json")
    assert cleaned.code == 0, cleaned.err
    kept = lines_of(tmp_path / "clean.de")
    assert not {*test_src[:3], *src[:2]} & {*kept}

    run = tmp_path / "run"
    assert mt("train", "--config", config, "--run-dir", run).code == 0
    tests = [line for line in metrics_lines(run) if line and line["kind"] == "test"]
    assert [(line["name"], SIGNED in line["signature"]) for line in tests] == [("wmt20", True)]
    named_by_config = mt("evaluate", "--model", run)
    named_by_option = mt("evaluate", "--model", run, "--test-set", "wmt20")
    assert named_by_config.out == named_by_option.out
    assert says(named_by_option.out.decode(), "wmt20: 40 lines", SIGNED)
    given = "--test-set", "wmt20", "--perturb", "caps", "--metrics", "bleu", "--json"
    perturbed = json.loads(mt("evaluate", "--model", run, *given).out)
    is_named = {name: SIGNED in scores[0]["signature"] for name, scores in perturbed.items()}
    assert is_named == {"plain": True, "caps": False}  # which is another text


CONFIG = {"src_lang": "de", "tgt_lang": "en", "train": [{"src": "train.src", "tgt": "train.tgt"}]}


def test_messages_about_a_config(fill: Fill, tiny_corpus: Path, tmp_path: Path, mt: Mt) -> None:
    config = tmp_path / "config.yaml"
    for section, fragments in [
        ({"test": [{"test_set": "wmt200"}]}, ["data.test[0]", "'wmt200'", "mean wmt20", "--list"]),
        ({"test": [{"test_set": "WMT20"}]}, ["data.test[0]", "'WMT20'", "mean wmt20"]),
        ({"valid": {"test_set": "wmt20", "tgt_lang": "xx"}}, ["data.valid[0]", "de-xx", "cs-en"]),
        (
            {"test": [{"test_set": "wmt18"}]},
            ["data.test[0]", "wmt18 de-en", "no network", "copy", "sacrebleu/wmt18", "SACREBLEU"],
        ),
        ({"test": [{"test_set": "wmt17"}]}, ["wmt17 de-en", "SSL", "MD5", "remove it if"]),
        ({"test": [{"test_set": "wmt20", "src": "a"}]}, ["data.test[0].test_set", "without path"]),
        ({"test": "multi30k/2016"}, ["data.test[0].path", "{test_set: multi30k/2016}"]),
        ({"train": [{"test_set": "wmt20"}]}, ["data.train[0].test_set", "not to train on"]),
    ]:
        data = CONFIG | {"root": str(tiny_corpus)} | section
        config.write_text(yaml.safe_dump({"data": data}), encoding="utf-8")
        message = refused(mt("config", "check", "--config", config))
        assert says(message, *fragments)
        assert message.count(fragments[-1]) == 1


def test_messages_about_options(mt: Mt) -> None:
    for given, fragments in [
        (["--test-set", "wmt20"], ["--test-set wmt20", "--langs de-en"]),
        (["--test-set", "wmt2", "--langs", "de-en"], ["--test-set wmt2:", "mean wmt2"]),
        (["--test-set", "wmt20", "--langs", "de"], ["--langs", "two languages", "'de'"]),
        (["--ref", "x.en", "--langs", "de-en"], ["--langs", "--test-set NAME"]),
    ]:
        assert says(refused(mt("evaluate", "--hyp", "x.en", *given)), *fragments)
