"""Updates, validation, checkpoints and the end of a run, on a model of a few thousand weights."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import partial, partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import log_of, merged, metrics_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mt.cli.main import main
from mt.config.load import config_from_mapping
from mt.config.schema import Config
from mt.data.batches import collate
from mt.data.loader import Update
from mt.errors import CheckpointError, ConfigError, DataError
from mt.model import checkpoint
from mt.runtime.devices import choose_device
from mt.runtime.distributed import World
from mt.training import checkpoints as checkpoints_module
from mt.training import launch, validation
from mt.training import update as learner_module
from mt.training.launch import train
from mt.training.optim import learning_rate
from mt.training.prepare import prepare
from mt.training.runlog import RunLog
from mt.training.trainer import Outcome, Trainer
from mt.training.update import Updater
from mt.training.validation import ValidationResult

Mapped = Mapping[str, Mapping[str, Any]]
# Short outputs and no search: what validation finds is not the point of most tests here.
QUICK = {"decode": {"beam_size": 1, "max_len_factor": 1.0, "max_len_extra": 1}}
BLIND: dict[str, Any] = {"data": {"valid": None, "test": []}}


@pytest.fixture
def config_of(tiny_mapping: Mapped) -> Callable[..., Config]:
    """`config_of(BLIND, train={"max_steps": 3})`: the tiny config with changes, the last one counts."""

    def made(*changes: Mapping[str, Any], **sections: Any) -> Config:
        mapping: dict[str, Any] = merged(tiny_mapping, QUICK)
        for change in (*changes, sections):
            mapping = merged(mapping, change)
        return config_from_mapping(mapping, "test")

    return made


@pytest.fixture
def trainer_of(config_of: Callable[..., Config], tmp_path: Path) -> Callable[..., Trainer]:
    """A trainer of its own run directory, to be driven by hand."""

    def made(*changes: Mapping[str, Any], **sections: Any) -> Trainer:
        config = config_of(*changes, **sections)
        run = Path(tempfile.mkdtemp(dir=tmp_path))
        (run / "checkpoints").mkdir()
        device = choose_device("cpu", config.train.precision)
        log = RunLog(run, config.train.max_steps)
        return Trainer(prepare(config, run, device, log), run, log)

    return made


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {
        name: tensor.clone()
        for name, tensor in checkpoint.weights_of(trainer.updater.model).items()
    }


def equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def update_of(trainer: Trainer, *groups: range) -> Update:
    """An update with one micro-batch for each group of sentences."""
    batches = [collate([trainer.plan.store.pair(i) for i in group]) for group in groups]
    return Update(0, 0, 1, batches, sum(batch.n_tgt for batch in batches))


def learn(trainer: Trainer, update: Update) -> tuple[float, float]:
    _, nll, norm = trainer.updater.train_step(update, trainer.state.step)
    trainer.state.step += 1
    return float(nll), float(norm)


# --- one update -------------------------------------------------------------------------------


@pytest.mark.parametrize("clip_norm", [0.5, None])
def test_accumulated_is_whole(trainer_of: Callable[..., Trainer], clip_norm: float | None) -> None:
    """Three updates in one batch, or in four of unequal size: the same weights, in double precision.

    The loss is divided by the tokens of the whole update; divided part by part it would weigh short parts more.
    """
    results = []
    for cuts in ([0, 64], [0, 40, 47, 60, 64]):
        trainer = trainer_of(
            BLIND, model={"dropout": 0.0}, optim={"clip_norm": clip_norm, "warmup_steps": 1}
        )
        trainer.updater.model.double().compute_dtype = None
        figures = []
        for start in (0, 64, 128):
            groups = [range(start + a, start + b) for a, b in itertools.pairwise(cuts)]
            figures.append(learn(trainer, update_of(trainer, *groups)))
        results.append((weights(trainer), figures))
    (whole, whole_figures), (parts, parts_figures) = results
    assert whole_figures == [pytest.approx(pair, rel=1e-6) for pair in parts_figures]
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-9, atol=1e-9)
    assert min(norm for _, norm in whole_figures) > 0.5  # so that there is something to clip


def test_the_figures_of_an_update_are_those_of_the_model(
    trainer_of: Callable[..., Trainer],
) -> None:
    """nll without smoothing, and the gradient norm before clipping, against torch's own functions."""
    trainer = trainer_of(
        BLIND, model={"dropout": 0.0}, optim={"clip_norm": 0.01, "label_smoothing": 0.2}
    )
    update = update_of(trainer, range(10))
    (batch,) = update.batches
    scores = trainer.updater.model.output(
        trainer.updater.model(batch.src, batch.tgt_in, batch.src_mask)
    ).flatten(0, 1)[batch.tgt_positions]
    nll = torch.nn.functional.cross_entropy(scores, batch.tgt_out).item()
    torch.nn.functional.cross_entropy(scores, batch.tgt_out, label_smoothing=0.2).backward()
    norm = math.sqrt(
        sum(
            float(p.grad.square().sum())
            for p in trainer.updater.model.parameters()
            if p.grad is not None
        )
    )
    trainer.updater.optimizer.zero_grad()
    assert learn(trainer, update) == pytest.approx((nll, norm), rel=1e-4)


@pytest.mark.parametrize("clip_norm", [0.25, 100.0, None])
def test_a_gradient_longer_than_allowed_is_shortened(
    trainer_of: Callable[..., Trainer], clip_norm: float | None
) -> None:
    """Its direction stays; one that is short enough is left as it is."""
    trainer = trainer_of(BLIND, optim={"clip_norm": clip_norm})
    used: list[float] = []
    parameters = list(trainer.updater.model.parameters())
    trainer.updater.optimizer.register_step_pre_hook(
        lambda *_: used.append(
            float(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).norm())
        )
    )
    _, norm = learn(trainer, update_of(trainer, range(20)))
    assert 1 < norm < 100
    assert used == [pytest.approx(clip_norm if clip_norm == 0.25 else norm, rel=1e-4)]


def test_an_update_moves_the_weights_by_the_scheduled_rate(
    trainer_of: Callable[..., Trainer],
) -> None:
    """Adam's first step is the rate itself wherever the gradient is not tiny: 1e-2 / 30 of warm-up."""
    trainer = trainer_of(BLIND)
    before = weights(trainer)
    learn(trainer, update_of(trainer, range(50)))
    name = "encoder.0.feed_forward.inner.weight"
    moved = (weights(trainer)[name] - before[name]).abs().flatten()
    assert float(moved.median()) == pytest.approx(1e-2 / 30, rel=1e-3)
    learn(trainer, update_of(trainer, range(50)))
    assert trainer.updater.optimizer.param_groups[0]["lr"] == pytest.approx(2e-2 / 30)


def test_the_average_of_weights_by_hand(trainer_of: Callable[..., Trainer]) -> None:
    """e = d e + (1 - d) w after update s = 0, 1, 2, ...; d = (1 + s) / (10 + s) until that exceeds the setting."""
    trainer = trainer_of(BLIND, train={"ema": 0.2})
    assert trainer.updater.ema is not None
    expected = {name: tensor.double() for name, tensor in weights(trainer).items()}
    for step, decay in enumerate((1 / 10, 2 / 11, 0.2, 0.2)):
        learn(trainer, update_of(trainer, range(step * 20, step * 20 + 20)))
        for name, tensor in weights(trainer).items():
            expected[name] = decay * expected[name] + (1 - decay) * tensor.double()
    for name, tensor in checkpoint.weights_of(trainer.updater.ema).items():
        torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-5, atol=1e-7)
    assert not equal(checkpoint.weights_of(trainer.updater.ema), weights(trainer))


def test_a_checkpoint_offers_the_average_and_keeps_the_weights(
    trainer_of: Callable[..., Trainer],
) -> None:
    trainer = trainer_of(BLIND, train={"ema": 0.9})
    learn(trainer, update_of(trainer, range(20)))
    trainer.save()
    assert trainer.updater.ema is not None
    assert equal(
        checkpoint.load_weights(trainer.run_dir / "checkpoints" / "last"),
        checkpoint.weights_of(trainer.updater.ema),
    )
    assert equal(
        checkpoint.load_state(trainer.run_dir / "checkpoints" / "last")["weights"], weights(trainer)
    )


# --- gradients that are no numbers ------------------------------------------------------------


def poison(trainer: Trainer, bad: Callable[[int], bool], value: float = math.nan) -> None:
    """The decoder's output, in the updates for which `bad(updates done)`, is not a number."""
    real = trainer.updater.forward

    def poisoned(*inputs: Tensor) -> Tensor:
        hidden: Tensor = real(*inputs)
        return hidden * value if bad(trainer.state.step) else hidden

    trainer.updater.forward = poisoned


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_changes_nothing(
    trainer_of: Callable[..., Trainer], value: float
) -> None:
    """Neither weights nor Adam's moments, nor its count of steps: the next update is as if there had been none."""
    changes = {"model": {"dropout": 0.0}, "optim": {"schedule": "constant", "warmup_steps": 1}}
    clean, spoilt = trainer_of(BLIND, changes), trainer_of(BLIND, changes)
    poison(spoilt, lambda step: step == 1, value)
    good, bad = update_of(clean, range(30)), update_of(clean, range(30, 60))
    learn(clean, good)
    learn(clean, good)
    learn(spoilt, good)
    before = weights(spoilt)
    assert not math.isfinite(learn(spoilt, bad)[1])
    assert int(spoilt.updater.skipped) == 1
    assert equal(weights(spoilt), before)
    learn(spoilt, good)
    assert int(spoilt.updater.skipped) == 0
    assert equal(weights(spoilt), weights(clean))


def test_scaled_gradients_come_to_the_same(trainer_of: Callable[..., Trainer]) -> None:
    """As fp16 needs it, here on the CPU: scaled by a power of two, unscaled before clipping; skipped where infinite."""
    changes = {
        "model": {"dropout": 0.0},
        "optim": {"clip_norm": 0.5, "schedule": "constant", "warmup_steps": 1},
    }
    plain, scaled = trainer_of(BLIND, changes), trainer_of(BLIND, changes)
    scaled.updater.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    poison(scaled, lambda step: step == 1, math.inf)
    update = update_of(plain, range(20), range(20, 50))
    first = learn(plain, update)
    assert learn(scaled, update) == pytest.approx(first, rel=1e-6)
    learn(scaled, update)
    assert int(scaled.updater.skipped) == 1
    assert scaled.updater.scaler.get_scale() == 512.0
    assert learn(scaled, update) == pytest.approx(learn(plain, update), rel=1e-6)
    assert equal(weights(scaled), weights(plain))


def test_more_updates_than_asked_for_are_told(
    config_of: Callable[..., Config], tmp_path: Path
) -> None:
    train(config_of(BLIND, train={"max_steps": 3}), tmp_path, "cpu")
    fewer = config_of(BLIND, train={"max_steps": 2})
    last = tmp_path / "checkpoints" / "last"
    assert (
        train(fewer, tmp_path, "cpu").reason
        == f"3 updates were done already, train.max_steps is 2; model: {last}"
    )
    assert (
        "updates to do      0, 0.0 epochs\n" in train(fewer, tmp_path, "cpu", dry_run=True).reason
    )


def test_what_cannot_be_compiled_is_refused_before_anything_is_made(
    config_of: Callable[..., Config], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"train\.compile: true takes a GPU"):
        train(config_of(train={"compile": True}), tmp_path / "run", "cpu")
    assert not (tmp_path / "run").exists()


def test_a_run_that_goes_on_in_fp16_begins_with_a_fresh_scale(
    trainer_of: Callable[..., Trainer],
) -> None:
    """And one that was in fp16 before goes on with its scale."""
    trainer = trainer_of(BLIND)
    learn(trainer, update_of(trainer, range(20)))
    trainer.save()
    trainer.updater.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    trainer.resume()
    assert trainer.updater.scaler.get_scale() == 256.0
    trainer.save()
    trainer.updater.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    trainer.resume()
    assert trainer.updater.scaler.get_scale() == 256.0


# --- repeatable -------------------------------------------------------------------------------


def test_the_seed_decides_every_bit(config_of: Callable[..., Config], tmp_path: Path) -> None:
    """Weights at the start, the order of the data, and dropout."""
    results = []
    for number, seed in enumerate((1, 1, 2)):
        run = tmp_path / str(number)
        train(config_of(BLIND, run={"seed": seed}, train={"max_steps": 5}), run, "cpu")
        results.append(checkpoint.load_weights(run / "checkpoints" / "last"))
    assert equal(results[0], results[1])
    matrices = [name for name, tensor in results[0].items() if tensor.dim() > 1]
    assert not any(torch.equal(results[0][name], results[2][name]) for name in matrices)


def test_dropout_is_another_at_each_step(trainer_of: Callable[..., Trainer]) -> None:
    trainer = trainer_of(BLIND, optim={"peak_lr": 1e-12})
    update = update_of(trainer, range(20))
    first, second = learn(trainer, update), learn(trainer, update)
    trainer.state.step = 0
    assert learn(trainer, update) == pytest.approx(first, rel=1e-6)
    assert second != pytest.approx(first, rel=1e-6)


def test_bf16_trains_on_a_cpu_as_fp32_does(
    config_of: Callable[..., Config], tmp_path: Path
) -> None:
    nll = {}
    for precision in ("fp32", "bf16"):
        run = tmp_path / precision
        settings = {"precision": precision, "max_steps": 24, "log_every": 8}
        train(config_of(BLIND, model={"dropout": 0.0}, train=settings), run, "cpu")
        nll[precision] = [line["nll"] for line in metrics_of(run, "train")]
        assert {
            w.dtype for w in checkpoint.load_weights(run / "checkpoints" / "last").values()
        } == {torch.float32}
        assert f"on CPU in {precision}" in log_of(run)
    assert nll["bf16"] == pytest.approx(nll["fp32"], rel=0.02)
    assert nll["bf16"] != nll["fp32"]
    assert nll["bf16"][-1] < 0.7 * nll["bf16"][0]


# --- validation, and what is kept -------------------------------------------------------------


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Validations that find the BLEU scores given, one after the other."""

    def set_up(*scores: float) -> None:
        left = iter(scores)

        def judge(self: validation.Validation, *_: Any) -> ValidationResult:
            bleu: Any = SimpleNamespace(value=next(left), signature="scripted")
            return ValidationResult(1.0, bleu, self.ref)

        monkeypatch.setattr(validation.Validation, "evaluate", judge)

    return set_up


NO_TEST: dict[str, Any] = {"data": {"test": []}}


def test_patience_ends_a_run_and_the_best_is_kept(
    config_of: Callable[..., Config], scripted: Callable[..., None], tmp_path: Path
) -> None:
    """5, 9, 7, 8, 9: the second 9 is no better than the first, and it is the third without a better one."""
    scripted(5.0, 9.0, 7.0, 8.0, 9.0)
    settings = {"max_steps": 50, "valid_every": 1, "patience": 3, "keep_last": 1, "keep_best": 1}
    outcome = train(config_of(NO_TEST, train=settings), tmp_path, "cpu")
    best = tmp_path / "checkpoints" / "best"
    assert (outcome.exit_code, outcome.best) == (0, best)
    assert outcome.reason == (
        f"no better validation in the last 3, at update 5; best model (BLEU 9.00 on the validation set): {best}"
    )
    assert log_of(tmp_path).rstrip().endswith(outcome.reason)
    assert best.resolve().name == "step-00000002"
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [
        "best",
        "last",
        "step-00000002",
        "step-00000005",
    ]
    assert checkpoint.read_meta(best, [])["score"] == 9.0
    # The same command again learns nothing more.
    assert train(config_of(NO_TEST, train=settings), tmp_path, "cpu").reason == outcome.reason
    assert len(metrics_of(tmp_path, "valid")) == 5


def test_so_many_of_the_newest_and_of_the_best_are_kept(
    config_of: Callable[..., Config], scripted: Callable[..., None], tmp_path: Path
) -> None:
    scripted(3.0, 9.0, 1.0, 8.0, 2.0, 4.0)
    settings = {"max_steps": 6, "valid_every": 1, "patience": None, "keep_last": 2, "keep_best": 2}
    train(config_of(NO_TEST, train=settings), tmp_path, "cpu")
    assert [int(folder.name[5:]) for folder in checkpoint.checkpoints(tmp_path)] == [2, 4, 5, 6]


def test_a_checkpoint_made_by_a_signal_crowds_out_no_other(
    trainer_of: Callable[..., Trainer],
) -> None:
    trainer = trainer_of(train={"valid_every": 4, "keep_last": 2, "keep_best": 0, "max_steps": 20})
    seen = []
    for step, score in ((4, 1.0), (8, 2.0), (9, None), (10, None), (12, 3.0)):
        trainer.state.step = step
        if score is not None:
            trainer.state.add_score(score)
        trainer.save()
        seen.append(
            [checkpoint.step_of(folder.name) for folder in checkpoint.checkpoints(trainer.run_dir)]
        )
    assert seen == [[4], [4, 8], [4, 8, 9], [4, 8, 10], [8, 12]]


def test_the_best_is_kept_although_none_is_asked_for(
    config_of: Callable[..., Config],
    scripted: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the tests are scored with it, not with the last one."""
    scripted(9.0, 1.0, 2.0)
    tested: list[dict[str, Tensor]] = []

    def score_tests(_: Config, model: Any, *__: Any) -> list[Any]:
        assert not model.training
        tested.append(checkpoint.weights_of(model))
        return []

    monkeypatch.setattr(launch, "score_tests", score_tests)
    settings = {"max_steps": 3, "valid_every": 1, "keep_last": 1, "keep_best": 0}
    train(config_of(train=settings), tmp_path, "cpu")
    first, third = checkpoint.checkpoints(tmp_path)
    assert (first.name, third.name) == ("step-00000001", "step-00000003")
    assert checkpoint.find_model(tmp_path) == first.resolve()
    assert equal(tested[0], checkpoint.load_weights(first))
    assert not equal(tested[0], checkpoint.load_weights(third))


def test_without_a_validation_set_the_last_model_is_the_result(
    config_of: Callable[..., Config], tmp_path: Path
) -> None:
    outcome = train(config_of(BLIND, train={"max_steps": 3}), tmp_path, "cpu")
    last = tmp_path / "checkpoints" / "last"
    assert outcome == Outcome(f"all 3 updates are done; model: {last}", 0, last)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["last", "step-00000003"]
    assert not (tmp_path / "samples").exists()


@torch.no_grad()
def test_validation_loss_is_the_mean_over_every_token(trainer_of: Callable[..., Trainer]) -> None:
    """Two roads: in batches, and one pair at a time without padding; also the pairs too long for training."""
    trainer = trainer_of(data={"max_tokens": 8})
    judge = trainer.validation
    assert judge is not None
    assert max(judge.store.src_lengths) > 8
    assert len(judge.store) == 40
    model, total, tokens = trainer.updater.model.eval(), 0.0, 0
    for number in range(40):
        batch = collate([judge.store.pair(number)])
        log_p = model.output(model(batch.src, batch.tgt_in, batch.src_mask))[0].log_softmax(-1)
        total -= float(log_p.gather(1, batch.tgt_out[:, None]).sum())
        tokens += len(batch.tgt_out)
    losses = judge.losses(trainer.updater.model.train(), trainer.device, World())
    assert sum(losses) / judge.n_tgt == pytest.approx(total / tokens, rel=1e-5)


# --- what a run leaves behind -----------------------------------------------------------------


def test_the_figures_of_a_run(tiny_run: Path) -> None:
    trained, valid, test = (metrics_of(tiny_run, kind) for kind in ("train", "valid", "test"))
    assert [line["step"] for line in trained] == [50, 100, 150, 200]
    assert [line["step"] for line in valid] == [100, 200]
    assert [(line["step"], line["name"]) for line in test] == [(200, "test.src")]
    config = checkpoint.load_model(tiny_run).config
    for line in trained:
        assert line["lr"] == learning_rate(line["step"], config.optim, config.model.d_model, 200)
        assert line["perplexity"] == pytest.approx(math.exp(line["nll"]))
        assert 0 < line["padding"] < 0.2
        assert 0 <= line["waiting"] <= 1
        assert line["skipped"] == 0
        assert line["grad_norm"] > 0
        assert line["tokens_per_second"] > 0
        assert line["memory_mb"] > 100
    for line in valid:
        assert line["perplexity"] == pytest.approx(math.exp(line["nll"]))
        assert line["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
        assert line["valid_seconds"] > 0
    seconds = [line["seconds"] for line in trained]
    assert seconds == sorted(seconds)
    assert trained[-1]["nll"] < 0.5 * trained[0]["nll"]
    assert valid[-1]["bleu"] > 30


def test_the_files_of_a_run(tiny_run: Path) -> None:
    assert {path.name for path in tiny_run.iterdir()} == {
        ".lock", "checkpoints", "config.yaml", "manifest.json", "metrics.jsonl", "samples", "store",
        "tokenizer.model", "train.log",
    }  # fmt: skip
    manifest = json.loads((tiny_run / "manifest.json").read_text(encoding="utf-8"))
    config = checkpoint.load_model(tiny_run).config
    assert manifest["seed"] == config.run.seed
    assert manifest["pairs"] == 2000
    lines = {Path(name).name: fact["lines"] for name, fact in manifest["data"].items()}
    assert lines == {"train.src": 2000, "train.tgt": 2000, "valid.src": 40, "valid.tgt": 40}
    weights = checkpoint.load_weights(checkpoint.find_model(tiny_run))
    assert manifest["parameters"] == sum(tensor.numel() for tensor in weights.values())


def called(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int | str | None:
    """Exit code of a command in this process."""
    monkeypatch.setattr(sys, "argv", ["mt", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_bleu_in_training_is_what_translate_and_evaluate_find(
    tiny_run: Path,
    tiny_corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two roads, to the last digit, of the same checkpoint; and the samples are lines of that output."""
    model, hyp = tiny_run / "checkpoints" / "step-00000200", tmp_path / "hyp"
    options = ["--device", "cpu", "--precision", "fp32"]
    assert (
        called(
            monkeypatch,
            "translate",
            "--model",
            model,
            *options,
            tiny_corpus / "valid.src",
            "-o",
            hyp,
        )
        == 0
    )
    capsys.readouterr()
    evaluate = [
        "evaluate",
        "--hyp",
        hyp,
        "--ref",
        tiny_corpus / "valid.tgt",
        "--metrics",
        "bleu",
        "--json",
    ]
    assert called(monkeypatch, *evaluate) == 0
    ((score,),) = json.loads(capsys.readouterr().out).values()
    in_training = metrics_of(tiny_run, "valid")[-1]
    assert (score["value"], score["signature"]) == (in_training["bleu"], in_training["signature"])
    assert 30 < score["value"] < 100
    blocks = (tiny_run / "samples" / "step-00000200.txt").read_text(encoding="utf-8").split("\n\n")
    texts = (path.read_text(encoding="utf-8").splitlines() for path in (
        tiny_corpus / "valid.src", tiny_corpus / "valid.tgt", hyp,
    ))  # fmt: skip
    rows = list(zip(*texts, strict=True))[::5]
    assert [block.rstrip("\n") for block in blocks] == [
        f"source     {src}\nreference  {ref}\noutput     {out}" for src, ref, out in rows
    ]


def test_tests_are_scored_with_the_best_model_and_once(
    tiny_run: Path,
    tiny_corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--device", "cpu", "--precision", "fp32", "--metrics", "bleu", "--json"]
    files = ["--src", tiny_corpus / "test.src", "--ref", tiny_corpus / "test.tgt"]
    assert called(monkeypatch, "evaluate", "--model", tiny_run, *files, *options) == 0
    ((score,),) = json.loads(capsys.readouterr().out).values()
    (line,) = metrics_of(tiny_run, "test")
    assert (score["value"], score["signature"]) == (line["bleu"], line["signature"])
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run, symlinks=True)
    before = (run / "metrics.jsonl").read_text()
    train(checkpoint.load_model(run).config, run, "cpu")
    assert (run / "metrics.jsonl").read_text() == before


def test_each_test_text_is_scored_once_and_under_a_name_of_its_own(
    config_of: Callable[..., Config], scripted: Callable[..., None], tmp_path: Path
) -> None:
    """Two references of one source; a third text is asked for when training has ended."""
    scripted(1.0)
    tests = [{"src": "test.src", "tgt": "test.tgt"}, {"src": "test.src", "tgt": "test.src"}]
    settings = {"train": {"max_steps": 1, "valid_every": 1}}
    train(config_of(settings, data={"test": tests}), tmp_path, "cpu")
    names = ["test.src test.tgt", "test.src test.src"]
    assert [line["name"] for line in metrics_of(tmp_path, "test")] == names
    train(
        config_of(settings, data={"test": [*tests, {"src": "valid.src", "tgt": "valid.tgt"}]}),
        tmp_path,
        "cpu",
    )
    assert [line["name"] for line in metrics_of(tmp_path, "test")] == [*names, "valid.src"]


def test_scores_on_another_validation_set_do_not_count(
    config_of: Callable[..., Config], scripted: Callable[..., None], tmp_path: Path
) -> None:
    """Else no model would ever be better than one that was judged by an easier text."""
    scripted(90.0, 1.0, 3.0, 2.0)
    settings = {"valid_every": 1, "patience": 2, "keep_last": 1}
    train(config_of(train={**settings, "max_steps": 1}), tmp_path, "cpu")
    other = {"valid": {"src": "test.src", "tgt": "test.tgt"}}
    outcome = train(config_of(train={**settings, "max_steps": 3}, data=other), tmp_path, "cpu")
    assert (
        "data.valid has changed: the scores so far, and with them the best model, do not count"
        in log_of(tmp_path)
    )
    assert "best model (BLEU 3.00 on the validation set)" in outcome.reason
    assert checkpoint.find_model(tmp_path).name == "step-00000002"
    longer = config_of(train={**settings, "max_steps": 3}, data=other, model={"max_positions": 99})
    train(longer, tmp_path, "cpu")
    assert log_of(tmp_path).count("data.valid has changed") == 1


# --- found before training, and while it goes on ----------------------------------------------


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where training begins all the same."""

    def ready(*_: Any) -> None:
        raise AssertionError("training has begun")

    monkeypatch.setattr(launch, "Trainer", ready)


@pytest.mark.usefixtures("untrained")
def test_a_run_directory_that_cannot_be_written_is_found_first(
    config_of: Callable[..., Config], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DataError,
        match=r"run directory .*/file/run: must be a folder that can be written, but Not a",
    ):
        train(config_of(), tmp_path / "file" / "run", "cpu")


@pytest.mark.usefixtures("untrained")
def test_missing_data_is_found_before_a_run_directory_is_made(
    config_of: Callable[..., Config], tmp_path: Path
) -> None:
    """All of it at once."""
    names = ["no.src", "no.tgt", "nor.src"]
    valid, test = {"src": names[0], "tgt": names[1]}, {"src": names[2], "tgt": "test.tgt"}
    gone = config_of(data={"valid": valid, "test": [test]})
    with pytest.raises(DataError) as error:
        train(gone, tmp_path / "run", "cpu")
    assert [name for name in names if name in str(error.value)] == names
    with pytest.raises(ConfigError, match=r"data\.train: must name at least one text"):
        train(config_of(data={"train": []}), tmp_path / "run", "cpu")
    assert not (tmp_path / "run").exists()


def test_a_device_out_of_memory_names_the_setting_to_lower(
    config_of: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(learner_module, "batch_loss", full)
    with pytest.raises(ConfigError) as error:
        train(config_of(BLIND), tmp_path, "cpu")
    message = re.fullmatch(
        r"batch\.tokens_per_batch: a batch of (\d+) sentences, (\d+) source and (\d+) target tokens long, does not fit "
        r"into the memory of CPU in fp32, 1 thread: [\d,]+ MB were in use\. Lower it from 500 "
        r"\(tokens_per_update keeps the training the same\), or set it to auto",
        str(error.value),
    )
    assert message
    rows, src, tgt = map(int, message.groups())
    assert 300 < rows * max(src, tgt) <= 500
    assert checkpoint.checkpoints(tmp_path) == []
    monkeypatch.undo()
    monkeypatch.setattr(
        Updater, "train_step", full
    )  # not in a batch, but in what the optimiser keeps
    with pytest.raises(
        ConfigError,
        match=r"the memory of CPU in fp32, 1 thread is too small: .* Lower batch\.tokens_",
    ):
        train(config_of(BLIND), tmp_path, "cpu")


@pytest.fixture
def full_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """After so many calls, a function of the checkpoint or the log finds the disk full."""

    def set_up(attribute: str, calls: int) -> None:
        owners = {"record": RunLog, "set_link": checkpoints_module, "save_file": checkpoint}
        owner: Any = owners[attribute]
        real, left = getattr(owner, attribute), [calls]

        def failing(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **options)

        monkeypatch.setattr(owner, attribute, failing)

    return set_up


@pytest.mark.parametrize(("what", "calls"), [("save_file", 1), ("record", 3), ("set_link", 1)])
def test_a_disk_that_fills_up_ends_the_run_with_a_message_and_the_last_checkpoint(
    what: str,
    calls: int,
    full_after: Callable[[str, int], None],
    config_of: Callable[..., Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the second checkpoint: its weights, a line of figures, or a link. Run again with room, it goes on."""
    settings = {"max_steps": 8, "valid_every": 4, "log_every": 2}
    full_after(what, calls)
    with pytest.raises((CheckpointError, DataError)) as error:
        train(config_of(BLIND, train=settings), tmp_path, "cpu")
    monkeypatch.undo()
    assert error.value.exit_code == 2
    message = str(error.value)
    assert "No space left on device" in message
    assert "Everything saved earlier is intact: free some space" in message
    assert message.endswith("run the same command again")
    assert message in log_of(tmp_path)
    assert (
        checkpoint.read_meta(tmp_path / "checkpoints" / "last", ["model.safetensors", "state.pt"])[
            "step"
        ]
        == 4
    )
    assert train(config_of(BLIND, train=settings), tmp_path, "cpu").exit_code == 0
    assert [line["step"] for line in metrics_of(tmp_path, "train")] == [2, 4, 6, 8]


@pytest.mark.slow
def test_a_disk_that_is_really_full(
    tiny_config: Path, run_mt: Callable[..., Any], small_disk: Callable[[int], Path], tmp_path: Path
) -> None:
    """`mt train` on a file system with room for a few checkpoints: whatever finds it full, it is one message."""
    settings = ["max_steps=400", "valid_every=2", "keep_last=400"]
    sets = [word for setting in settings for word in ("--set", f"train.{setting}")]
    sets += ["--set", "data.valid=null", "--set", "data.test=null"]
    run = small_disk(3_000) / "run"
    ended = run_mt("train", "-c", tiny_config, "--run-dir", run, "--device", "cpu", *sets)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("mt: ")
    assert "Everything saved earlier is intact: free some space" in ended.stderr
    newest = checkpoint.checkpoints(run)[-1]
    found = next(checkpoints_module.intact_checkpoints(run, lambda line: pytest.fail(line)), None)
    assert found is not None
    assert found[0] == newest
    assert int(newest.name[5:]) >= 4
    moved = tmp_path / "run"
    shutil.copytree(run, moved, symlinks=True)
    sets += ["--set", f"train.max_steps={int(newest.name[5:]) + 2}"]
    assert (
        run_mt("train", "-c", tiny_config, "--run-dir", moved, "--device", "cpu", *sets).returncode
        == 0
    )


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system does not tell a process's memory"
)
def test_memory_stays_flat(tiny_config: Path, run_mt: Callable[..., Any], tmp_path: Path) -> None:
    """A process of its own, over seven epochs in ever new tokens, with validations and checkpoints: 5 % at most."""
    settings = [
        "train.max_steps=400",
        "train.valid_every=40",
        "train.log_every=5",
        "tokenizer.sampling_alpha=0.1",
    ]
    sets = [word for setting in settings for word in ("--set", setting)]
    ended = run_mt(
        "train", "-c", tiny_config, "--run-dir", tmp_path, "--device", "cpu", *sets, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    memory = [
        (line["epoch_position"], line["resident_mb"]) for line in metrics_of(tmp_path, "train")
    ]
    assert memory[-1][0] > 6
    # By epochs: from line to line it goes up and down, since what was freed is given back only now and then.
    first, last = (
        max(mb for at, mb in memory if from_ < at <= from_ + 1) for from_ in (0, memory[-1][0] - 1)
    )
    assert last <= 1.05 * first


class Waits(TorchDispatchMode):
    """When this thread asked for a number that a device would have to be waited for; a copy by `to` is not seen."""

    KINDS = frozenset(
        f"aten::{name}"
        for name in (
            "_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "bincount",
            "repeat_interleave.Tensor",
        )
    )  # fmt: skip

    def __init__(self, now: Callable[[], int]) -> None:
        super().__init__()
        self.now, self.steps = now, list[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = func.name().startswith("aten::index") and any(
            index is not None and index.dtype == torch.bool
            for index in (args[1] if isinstance(args[1], list) else [])
        )
        if func.name() in self.KINDS or by_mask:
            self.steps.append(self.now())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optim": {"optimizer": "muon"}},
        {"train": {"precision": "bf16", "ema": 0.9}, "optim": {"rdrop": 1.0}},
        {"model": {"attention_dropout": 0.1, "source_word_dropout": 0.1}},
        {"batch": {"tokens_per_update": 400, "tokens_per_batch": 100}},
    ],
)
def test_the_device_is_waited_for_only_where_a_line_is_logged(
    changes: dict[str, Any], trainer_of: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(
        BLIND, changes, {"train": {"max_steps": 20, "valid_every": 20, "log_every": 5}}
    )
    main = threading.get_ident()

    def noted(method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if threading.get_ident() == main:
            waits.steps.append(trainer.state.step)
        return method(*arguments, **options)

    for name in ("cpu", "tolist", "numpy"):
        monkeypatch.setattr(Tensor, name, partialmethod(partial(noted, getattr(Tensor, name))))
    with Waits(lambda: trainer.state.step) as waits:
        trainer.train()
    assert set(waits.steps) == {5, 10, 15, 20}
