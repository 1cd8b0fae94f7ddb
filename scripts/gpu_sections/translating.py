"""Lines of text through tokenizer, worker process and GPU, as `mt translate` takes a large text.

This process has no CUDA context until the worker has ended: some GPUs take one process only.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from gpu_sections.decoding import MOST_DIFFERENT, let_end
from gpu_sections.report import Report
from gpu_sections.setting import Setting, Vocabulary
from mt.data.tokens.tokenizer import EOS, Side, Tokenizer
from mt.model.checkpoint import build_model
from mt.runtime.devices import Device
from mt.search.engine import TorchEngine
from mt.search.inference import Inference
from mt.translate.load_torch import ELSEWHERE
from mt.translate.loaded_engine import Answer, LoadedEngine
from mt.translate.translator import Translator, make_translator
from mt.translate.workers import Pool

LINES = 20_000
BATCH_TOKENS = 65_536
# The last line of these has no text.
FIRST = 10


@dataclass(frozen=True)
class Words:
    """Stands for SentencePiece, which need not be installed: the word `w7` is token 7."""

    size: int

    def piece_size(self) -> int:
        """Tokens of the vocabulary."""
        return self.size

    def encode(self, text: Any, num_threads: int = 1) -> list[Any]:
        """The ids of a line, or of each of several."""
        if isinstance(text, list):
            return list(map(self.encode, text))
        return [int(word[1:]) for word in text.split()]

    def decode(self, ids: list[Any]) -> Any:
        """The text of a row of ids, or of each of several."""
        if ids and isinstance(ids[0], list):
            return list(map(self.decode, ids))
        return " ".join(f"w{i}" for i in ids)


@dataclass
class SearchHere:
    """A function for a worker process: its first call loads the model onto the device."""

    setting: Setting
    weights: Path
    engine: TorchEngine | None = None

    def __call__(self, *job: Any) -> Answer:
        """Search a batch."""
        if self.engine is None:
            model = random_model(self.setting)
            model.load_state_dict(torch.load(self.weights, weights_only=True))
            self.engine = engine_of(model, self.setting, self.setting.choose())
        options = loading_options(self.setting, self.engine)
        return LoadedEngine(engine=self.engine, **options).answer(*job)


def run(report: Report, setting: Setting) -> None:
    """Compare what a worker finds with what this process finds, and time the worker."""
    model = random_model(setting)
    lines = prepared_text(model, setting)
    lines[FIRST - 1] = ""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), weights := Path(folder) / "weights.pt")
        report.check("a worker", partial(through_worker, report, setting, weights, lines))


def prepared_text(model: Any, setting: Setting) -> list[str]:
    """Lines to translate with the model, whose sentences may end at any step from here on."""
    count = 200 if setting.tiny else LINES
    sources = [setting.pairs.pair(number)[0].tolist() for number in range(count)]
    let_end(model, Setting("cpu", setting.tiny), sources[:20])
    lines: list[str] = tokenizer_of(setting).src.decode(sources)
    return lines


def translator_of(setting: Setting, searches: list[SearchHere]) -> Translator:
    """A translator whose workers call these; this process only reads and writes lines."""
    with torch.device("meta"):
        elsewhere = engine_of(random_model(setting), setting, ELSEWHERE)
    options = loading_options(setting, elsewhere)
    pool = Pool(searches)
    return make_translator(LoadedEngine(engine=elsewhere, pool=pool, reads_ahead=True, **options))


def loading_options(setting: Setting, engine: TorchEngine) -> dict[str, Any]:
    """The other parts of a `LoadedEngine`."""
    batch_tokens = 1024 if setting.tiny else BATCH_TOKENS
    common = {"tokenizer": tokenizer_of(setting), "batch_tokens": batch_tokens}
    return {**common, "max_source": engine.max_length}


def through_worker(report: Report, setting: Setting, weights: Path, lines: list[str]) -> str:
    """Translate the lines by a worker, then in this process."""
    search = SearchHere(setting, weights)
    with translator_of(setting, [search]) as translator:
        list(translator.translate(lines[:FIRST]))  # the worker loads the model
        start = time.perf_counter()
        found = [each.texts[0] for each in translator.translate(lines)]
        speed = len(lines) / (time.perf_counter() - start)
    assert not torch.cuda.is_initialized(), "this process has used the GPU"
    report.add("lines through a worker", value=speed, unit="lines/s")
    search([[EOS + 1]], [[]], 1, False)  # loads the model here too
    assert search.engine is not None
    options = loading_options(setting, search.engine)
    here = make_translator(LoadedEngine(engine=search.engine, **options))
    expected = [each.texts[0] for each in here.translate(lines)]
    assert len(found) == len(lines), "lines are missing"
    assert not found[FIRST - 1], "a line without text has a translation"
    n_lengths = len({len(text.split()) for text in expected})
    assert n_lengths > 3, "all sentences end at the same step: the check shows little"
    n_others = sum(one != other for one, other in zip(found, expected, strict=True))
    note = f"{n_others} of {len(lines)} outputs differ from those of this process"
    assert n_others <= MOST_DIFFERENT * len(lines), note
    return f"{note}; {n_lengths} lengths"


def random_model(setting: Setting) -> Any:
    """The base model with a bias of every output, on a CPU."""
    config = setting.config(1024, compiled=False, model={"output_bias": True})
    return build_model(config, cast("Tokenizer", Vocabulary(setting.vocab_size)))


def engine_of(model: Any, setting: Setting, device: Device) -> TorchEngine:
    """Greedy search with the model on a device."""
    given = {"beam_size": 1, "max_len_factor": 1.0, "max_len_extra": 10}
    config = setting.config(1024, compiled=False, decode=given)
    return TorchEngine(Inference(model, device), config.decode)


def tokenizer_of(setting: Setting) -> Tokenizer:
    """The tokenizer of `Words` on both sides."""
    side = Side(cast("Any", Words(setting.vocab_size)), b"")
    no_token = SimpleNamespace(src=side, tgt=side, before_source=lambda to, data: [])
    return cast("Tokenizer", no_token)
