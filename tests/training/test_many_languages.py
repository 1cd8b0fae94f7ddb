"""One model for several directions: `data.language_tokens`, `directions`, `--to`, and exports."""

from __future__ import annotations

import json
import random
import signal
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import MonkeyPatch, Mt, config_of, log_of, metrics_of, refused, write_lines
from messages import raises_saying, says
from sentencepiece import SentencePieceProcessor
from token_stores import directed, stored

from mt.cleaning.plan import plan_of
from mt.config.load import config_from_mapping
from mt.config.plan import Direction, plan_data
from mt.config.schema import Config, DataConfig
from mt.data.tokens.augmentation import Augmentation
from mt.data.tokens.directions import DirectedPairs
from mt.data.tokens.store import fingerprint_of
from mt.data.tokens.tokenizer import PairSample, Tokenizer, train_on_sample
from mt.errors import ConfigError, DataError
from mt.evaluation.metrics import Bleu
from mt.search.options import EngineName, EngineOptions, SearchOptions
from mt.training.launch import train
from mt.training.prepare import training_texts
from mt.training.trainer import Trainer
from mt.training.validation import Validation
from mt.translate.load import load_engine
from mt.translate.score_lines import load_scorer
from mt.translate.translator import make_translator

# Each language has its own words for the same things: nothing but the token says which to write.
PREFIXES = {"cs": "č", "de": "sch", "en": "th", "fr": "qu"}
WORDS = [first + vowel for first in "bdgkl" for vowel in "aeiou"]
TRAINED = [f"{a}-{b}" for a in PREFIXES for b in PREFIXES if a != b and (a, b) != ("cs", "fr")]
LANGUAGES = ["cs", "de", "en", "fr"]


def write_text(stem: Path, n_lines: int, seed: int) -> None:
    draw = random.Random(seed)
    lines = [draw.choices(WORDS, k=draw.randint(2, 6)) for _ in range(n_lines)]
    for code, first in PREFIXES.items():
        texts = [" ".join(first + word for word in line) for line in lines]
        write_lines(stem.with_name(f"{stem.name}.{code}"), texts)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("languages")
    for seed, (name, n_lines) in enumerate({"train": 600, "valid": 10, "test": 10}.items()):
        write_text(folder / name, n_lines, seed)
    return folder


@pytest.fixture(scope="module")
def config(corpus: Path, tiny_mapping: dict[str, dict[str, Any]]) -> Config:
    data = {
        "root": str(corpus), "language_tokens": True, "src_lang": "src", "tgt_lang": "tgt",
        "train": [{"path": "train", "directions": TRAINED}],
        "valid": {"path": "valid", "directions": ["de-en", "fr-de"], "src": None, "tgt": None},
        "test": [{"path": "test", "directions": ["cs-de", "cs-fr"]}],
    }  # fmt: skip
    settings = {"max_steps": 2, "valid_every": 2, "log_every": 1}
    return config_of(tiny_mapping, data=data, tokenizer={"vocab_size": 500}, train=settings)


@pytest.fixture(scope="module")
def run(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two updates: its outputs mean nothing."""
    folder = tmp_path_factory.mktemp("run") / "run"
    train(config, folder, "cpu")
    return folder


@pytest.fixture(scope="module")
def tokenizer(corpus: Path) -> Tokenizer:
    sample = PairSample(10_000, 1)
    for code in LANGUAGES:
        sample.src += (corpus / f"train.{code}").read_text(encoding="utf-8").splitlines()
    return train_on_sample(config_of({}).tokenizer, sample, lambda _: None, languages=LANGUAGES)


# --- the config -------------------------------------------------------------------------------


def test_each_direction_is_a_text_and_the_way_back_its_reverse() -> None:
    text = {"path": "t", "directions": ["de-en", "en-de", "fr-de", "de-en"], "weight": 2}
    values = {"language_tokens": True, "train": [text, {"path": "b", "weight": 3}]}
    config = config_from_mapping({"data": values | {"src_lang": "cs", "tgt_lang": "en"}}, "c")
    data = plan_data(config.data)
    sides = [(corpus.source.src, corpus.source.tgt, corpus.direction) for corpus in data.corpora]
    assert sides == [(*way, way) for way in (("de", "en"), ("fr", "de"), ("cs", "en"))]
    flows = [(flow.corpus, flow.is_turned, str(flow.direction), flow.token) for flow in data.flows]
    assert flows == [
        (0, False, "de-en", "en"), (0, True, "en-de", "de"),
        (1, False, "fr-de", "de"), (2, False, "cs-en", "en"),
    ]  # fmt: skip
    assert [flow.weight for flow in data.flows] == [2, 2, 2, 3]
    assert data.token_languages == ["en", "de"]
    again = config_from_mapping(config.model_dump(), "what a run has written")
    assert plan_data(again.data) == data


def test_what_languages_need_is_said() -> None:
    separate = {"tokenizer": {"joint": False}}
    for data, said in [
        ({"train": [{"path": "a", "directions": ["de-en", "de-fr"]}]},
         ("data.language_tokens", "true", "de", "en and fr", "tag")),
        ({"train": [{"path": "a", "directions": ["de-en", "english"]}]},
         ("data.train[0].directions[1]", "such as de-fr", "'english'")),
        ({"train": [{"src": "a", "tgt": "b", "directions": ["de-en"]}]},
         ("data.train[0].directions", "path")),
        ({"language_tokens": True, "train": [{"path": "a", "directions": ["de-en"]}],
          "test": [{"path": "a", "src_lang": "de", "tgt_lang": "it"}]},
         ("data.test[0].tgt_lang", "translates into (en)", "found it")),
        ({"valid": {"src": "a", "tgt": "b", "directions": ["de-en"]}},
         ("data.valid[0].directions", "path")),
        ({"language_tokens": True, "train": [{"path": "a", "directions": ["de-en", "en-de"]}]},
         ("tokenizer.joint", "must be true", "data.train[0] (en-de)", "one way")),
    ]:  # fmt: skip
        with raises_saying(ConfigError, *said):
            config_from_mapping({"data": data} | separate, "c")


# --- the vocabulary and the store -------------------------------------------------------------


def test_a_token_is_one_piece_that_no_text_is_split_into(tokenizer: Tokenizer) -> None:
    assert tokenizer.languages == {code: number for number, code in enumerate(LANGUAGES, 4)}
    typed = "<2fr> čba"
    ids = tokenizer.src.encode([typed])[0]
    assert not {*ids} & {*tokenizer.languages.values()}
    assert tokenizer.src.decode([ids, [7, *ids]]) == [typed, typed]
    assert tokenizer.src.symbol_ids() == {4, 5, 6, 7}


def pairs_of(config: Config, tokenizer: Tokenizer, folder: Path) -> DirectedPairs:
    return directed(stored(folder, config.data, tokenizer), config.data, tokenizer)


@pytest.mark.parametrize("changes", [None, {"typos": 0.99, "noise": 0.99}])
def test_each_source_begins_with_its_token_also_augmented(
    changes: Any, config: Config, corpus: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    changed = config_of(config.model_dump(), data={"dedupe": False, "augment": changes})
    pairs = pairs_of(changed, tokenizer, tmp_path / "a")
    if changes is None:
        src = (corpus / "train.cs").read_text(encoding="utf-8").splitlines()
        tgt = (corpus / "train.en").read_text(encoding="utf-8").splitlines()
        rows = tokenizer.src.encode(src), tokenizer.tgt.encode(tgt)
        forth, back = (600 * TRAINED.index(name) for name in ("cs-en", "en-cs"))
        for n in (0, 599):
            ids = [side.tolist() for at in (forth, back) for side in pairs.pair(at + n)]
            assert ids == [[6, *rows[0][n]], rows[1][n], [4, *rows[1][n]], rows[0][n]]
    else:
        stage = plan_data(changed.data).stages[0]
        pairs = Augmentation(pairs, stage, tokenizer, 1, 40)(0)
        assert says(pairs.store.augmented, "typos or noise")
    starts = np.cumsum(pairs.kept) - pairs.kept
    for start, kept, direction in zip(starts, pairs.kept, TRAINED, strict=True):
        of_flow = pairs.pairs(np.arange(start, start + kept))
        assert {src[0] for src, _ in of_flow} == {tokenizer.languages[direction[3:]]}
        every = np.concatenate([side for src, tgt in of_flow for side in (src[1:], tgt)])
        assert not {*every.tolist()} & {*tokenizer.languages.values()}


def test_tokens_change_the_store_languages_do_not(config: Config, tokenizer: Tokenizer) -> None:
    def fingerprint(**changes: Any) -> str:
        own = changes.pop("text", {})
        text = {"path": "train", "src": "cs", "tgt": "de", "tgt_lang": "de"} | own
        data = DataConfig.model_validate(config.data.model_dump() | {"train": [text], **changes})
        return fingerprint_of(training_texts(plan_data(data), tokenizer, Path("none"), {}))

    plain = fingerprint(language_tokens=False)
    assert plain == fingerprint(language_tokens=False, text={"src_lang": "cs", "tgt_lang": "fr"})
    assert len({plain, fingerprint(), fingerprint(text={"tgt_lang": "fr"})}) == 3


def test_a_vocabulary_without_the_token_is_refused(config: Config, tmp_path: Path) -> None:
    sample = PairSample(10, 1)
    sample.src, sample.tgt = ["čba"] * 5, ["schba"] * 5
    other = train_on_sample(config.tokenizer, sample, lambda _: None, languages=["cs"])
    with raises_saying(DataError, "data.language_tokens", "de", "found cs", "new_vocabulary"):
        pairs_of(config, other, tmp_path / "a")


def test_cleaning_knows_the_languages_of_each_text(config: Config, tmp_path: Path) -> None:
    cleaned = config_of(config.model_dump(), data={"clean": {"max_other_language": None}})
    plan = plan_of(plan_data(cleaned.data), tmp_path)
    assert plan.corpora[0].direction == ("cs", "de")
    assert len({corpus.direction for corpus in plan.corpora}) == len({*map(id, plan.scorers)}) == 6
    assert not any(scorer.notes for scorer in plan.scorers)


def test_a_pair_of_two_languages_is_no_duplicate(
    config: Config, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    for code in ("de", "en", "fr"):
        write_lines(tmp_path / f"t.{code}", ["Berlin", "Berlin"])
    text = {"path": "t", "directions": ["de-en", "en-de", "de-fr"]}
    changed = config_of(config.model_dump(), data={"root": str(tmp_path), "train": [text]})
    assert pairs_of(changed, tokenizer, tmp_path / "a").kept == (1, 1, 1)


# --- commands ---------------------------------------------------------------------------------


def test_a_run_scores_its_tests_by_direction(run: Path) -> None:
    assert [line["name"] for line in metrics_of(run, "test")] == ["test cs-de", "test cs-fr"]
    assert "(train, en-cs)" in log_of(run)


def test_bleu_of_each_direction_of_the_validation_set(run: Path) -> None:
    (line,) = metrics_of(run, "valid")
    assert list(line["bleu_by_direction"]) == ["de-en", "fr-de"]
    bleu = line["bleu_by_direction"]["fr-de"]
    assert f"(de-en {line['bleu_by_direction']['de-en']:.2f}, fr-de {bleu:.2f})" in log_of(run)
    ref = ["a b c d e", "f g h i", "a b d c e f g h", "k l m n o"]
    outputs = ["a b c d e", "f g h", "a b d c f e g h", "k l m n"]
    directions = [Direction(*pair.split("-")) for pair in ("de-en", "de-en", "fr-de", "de-en")]
    of_text: Any = SimpleNamespace(metrics={"bleu": Bleu([ref])}, directions=directions)
    scores, by_direction = Validation._scores(of_text, outputs)
    assert scores["bleu"] == Bleu([ref]).score(outputs)
    parts = {"de-en": [0, 1, 3], "fr-de": [2]}
    for name, rows in parts.items():
        own = Bleu([[ref[row] for row in rows]]).score([outputs[row] for row in rows])
        assert by_direction[name] == pytest.approx(own.value)
    of_text.directions = directions[:1] * 4
    assert Validation._scores(of_text, outputs)[1] == {}


def test_a_run_stopped_in_a_stage_resumes_exactly(
    config: Config, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    first = {"until": {"updates": 4}, "augment": {"typos": 0.4, "noise": 0.3}}
    data = {"stages": [first, {"weights": [1, 0] * 5 + [2]}], "valid": None, "test": []}
    settings = {"max_steps": 7, "valid_every": 7}
    changed = config_of(config.model_dump(), data=data, train=settings, model={"dropout": 0.1})
    monkeypatch.setattr(Trainer, "_request", lambda _: 0)
    assert train(changed, tmp_path / "whole", "cpu").exit_code == 0
    for stop in (2, 5):
        request = lambda self, stop=stop: (signal.SIGTERM + 1) * (self.state.step == stop)  # noqa: E731
        monkeypatch.setattr(Trainer, "_request", request)
        assert train(changed, tmp_path / "stopped", "cpu").exit_code == 128 + signal.SIGTERM
    monkeypatch.setattr(Trainer, "_request", lambda _: 0)
    assert train(changed, tmp_path / "stopped", "cpu").exit_code == 0
    weights = Path("checkpoints", "last", "model.safetensors")
    stopped, whole = ((tmp_path / name / weights).read_bytes() for name in ("stopped", "whole"))
    assert stopped == whole


@pytest.mark.parametrize(("options", "found"), [([], "nothing"), (["--to", "xx"], "xx")])
def test_a_language_must_be_known(run: Path, mt: Mt, options: list[str], found: str) -> None:
    for command in (["translate", "--model", run], ["inspect", "attention", "--model", run, "čba"]):
        message = refused(mt(*command, *options, stdin="čba\n".encode()))
        assert says(message, "--to", "cs, de, en, fr", f"found {found}")


def test_a_model_without_tokens_takes_its_one_language(tiny_run: Path, mt: Mt) -> None:
    plain = mt("translate", "--model", tiny_run, stdin=b"eins\n")
    assert mt("translate", "--model", tiny_run, "--to", "en", stdin=b"eins\n").out == plain.out
    message = refused(mt("translate", "--model", tiny_run, "--to", "fr", stdin=b"eins\n"))
    assert says(message, "--to", "(en)", "found fr", "leave the option out")


def test_a_language_that_only_a_first_stage_had_is_not_asked_for(tokenizer: Tokenizer) -> None:
    stages = [{"until": {"updates": 9}, "both_directions": True}, {}]
    text = {"path": "a", "directions": ["de-en", "fr-en"]}
    data = DataConfig.model_validate({"language_tokens": True, "train": [text], "stages": stages})
    assert tokenizer.before_source(None, plan_data(data)) == [tokenizer.languages["en"]]


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_segments_have_the_token(run: Path, engine: EngineName, monkeypatch: MonkeyPatch) -> None:
    options = EngineOptions(models=[run], engine=engine, workers=1, device="cpu")
    with load_engine(SearchOptions(), options) as loaded:
        translator = make_translator(loaded, to="fr")
        translator.steps = translator.steps[:-1]  # no second search
        seen: list[list[int]] = []
        search = loaded.engine.search_batches

        def searching(jobs: Any) -> Any:
            seen.extend(source for sources, _ in jobs for source in sources)
            return search(jobs)

        monkeypatch.setattr(type(loaded.engine), "search_batches", lambda _, jobs: searching(jobs))
        lines = ["čba čde", "", "čba čde čgu " * 30, "<2de> čba"]
        results = list(translator.translate(lines))
        assert [one.segments for one in results][:2] == [1, 0]
        assert len(seen) == sum(one.segments for one in results)
        assert results[2].segments > 1
        languages = loaded.tokenizer.languages
        french = languages["fr"]
        assert all(source[0] == french for source in seen)
        assert all(len(source) <= loaded.max_tokens for source in seen)
        assert not {*languages.values()} & {id for one in seen for id in one[1:]}
        assert translator.settings["--to"] == str([french])


def test_scores_are_those_of_the_source_with_its_token(run: Path) -> None:
    pairs = (["čba čde"], ["quba qude"])
    options = EngineOptions(models=[run], device="cpu", precision="fp32")
    scores = {}
    for to in ("fr", "de"):
        scorer = load_scorer(SearchOptions(to=to), options)
        (scored,) = scorer.score(*pairs)
        scores[to] = scored.score
        (target,) = scorer.tokenizer.tgt.encode(pairs[1])
        source = [scorer.tokenizer.languages[to], *scorer.tokenizer.src.encode(pairs[0])[0]]
        (forced,) = scorer.forced.log_probs([(source, target)])
        assert scored.log_probs == pytest.approx(forced)
    assert scores["fr"] != scores["de"]


def test_evaluation_is_by_direction(run: Path, corpus: Path, mt: Mt) -> None:
    every = json.loads(mt("evaluate", "--model", run, "--json", "--metrics", "chrf").out)[str(run)]
    assert [one["test_set"] for one in every] == ["test cs-de", "test cs-fr"]
    files = ["--src", corpus / "test.cs", "--ref", corpus / "test.fr", "--metrics", "chrf"]
    one = mt("evaluate", "--model", run, "--to", "fr", *files, "--json")
    assert one.code == 0, one.err
    assert json.loads(one.out)[str(run)][0]["value"] == every[1]["value"]
    message = refused(mt("evaluate", "--model", run, "--from", "cs", "--to", "fr"))
    assert says(message, "--from cs and --to fr", "data.test", "--src")


# --- exports ----------------------------------------------------------------------------------


def test_a_package_of_argos_has_one_target_language(run: Path, tmp_path: Path, mt: Mt) -> None:
    """CTranslate2 puts the token: Argos Translate knows no prefix of a source."""
    library = pytest.importorskip("ctranslate2")
    output = tmp_path / "cs_fr.argosmodel"
    done = mt("export", "argos", "--model", run, "-o", output, "--from-code", "cs",
              "--to-code", "fr", "--quantization", "fp32")  # fmt: skip
    assert done.code == 0, done.err
    with zipfile.ZipFile(output) as zipped:
        zipped.extractall(tmp_path)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    processor = SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    translator = library.Translator(str(folder / "model"), device="cpu")
    pieces = processor.encode("čba čde", out_type=str)
    (found,) = translator.score_batch([pieces], [processor.encode("quba", out_type=str)])
    options = EngineOptions(models=[run], device="cpu", precision="fp32")
    (scored,) = load_scorer(SearchOptions(to="fr"), options).score(["čba čde"], ["quba"])
    assert found.log_probs == pytest.approx(scored.log_probs, abs=1e-3)
    unknown = refused(mt("export", "argos", "--model", run, "-o", tmp_path / "x.argosmodel",
                         "--from-code", "cs", "--to-code", "it"))  # fmt: skip
    assert says(unknown, "--to-code", "cs, de, en, fr", "found it")


@pytest.mark.parametrize("to", ["fr", None])
def test_an_export_for_ctranslate2_into_one_language_or_any(
    to: str | None, run: Path, tmp_path: Path, mt: Mt
) -> None:
    """With --to the folder puts the token itself; without it the first token of a source does."""
    library = pytest.importorskip("ctranslate2")
    folder = tmp_path / "ct2"
    option = ["--to", to] if to else []
    done = mt("export", "ctranslate2", "--model", run, "-o", folder, *option)
    assert done.code == 0, done.err
    own = Tokenizer.load(run)
    pieces = own.src.pieces(" čba čde") if to else ["<2fr>", *own.src.pieces(" čba čde")]
    target = own.tgt.pieces("quba")
    (found,) = library.Translator(str(folder), device="cpu").score_batch([pieces], [target])
    options = EngineOptions(models=[run], device="cpu", precision="fp32")
    (scored,) = load_scorer(SearchOptions(to="fr"), options).score(["čba čde"], ["quba"])
    assert found.log_probs == pytest.approx(scored.log_probs, abs=1e-3)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert ("into fr" in card) == (to is not None)
    assert ("<2cs>" in card) == (to is None)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_transformers_names_the_language_as_marian_does(run: Path, tmp_path: Path, mt: Mt) -> None:
    """`>>fr<<`, which its tokenizer knows."""
    transformers = pytest.importorskip("transformers")
    done = mt("export", "huggingface", "--model", run, "-o", tmp_path / "hf")
    assert done.code == 0, done.err
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    tokenizer.punc_normalizer = lambda text: text
    own = Tokenizer.load(run)
    ids = tokenizer(">>fr<< čba čde").input_ids
    assert ids == [own.languages["fr"], *own.src.encode(["čba čde"])[0], 3]
    assert ">>cs<<" in (tmp_path / "hf" / "README.md").read_text(encoding="utf-8")


# --- learning ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_token_decides_the_language_also_of_a_direction_never_seen(
    config: Config, tmp_path: Path, corpus: Path, mt: Mt
) -> None:
    # Without dropout, one seed in three writes German or English in the direction never seen.
    shape = {"d_model": 64, "n_heads": 4, "d_ff": 128, "dropout": 0.1}
    settings = {"max_steps": 800, "valid_every": 400, "log_every": 400}
    optim = {"peak_lr": 4e-3, "warmup_steps": 100}
    changed = config_of(config.model_dump(), model=shape, train=settings, optim=optim)
    train(changed, tmp_path / "run", "cpu")
    scores = {line["name"]: line["bleu"] for line in metrics_of(tmp_path / "run", "test")}
    assert scores["test cs-de"] > 60
    assert scores["test cs-fr"] > 60  # never trained; with the words of another language it is 0
    source = (corpus / "test.cs").read_bytes()
    for code, first in PREFIXES.items():
        out = mt("translate", "--model", tmp_path / "run", "--to", code, stdin=source).out.decode()
        words = out.split()
        assert sum(word.startswith(first) for word in words) > 0.9 * len(words)
