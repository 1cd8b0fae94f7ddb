"""data.stages: other mixtures and changes of the text, one after the other; resumed exactly."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import BLIND, Mapped, TrainerOf, config_of, log_of, metrics_of, weights_of
from messages import raises_saying, says
from run_comparison import check_equal_states
from token_stores import store_of_lengths

from mt.config.load import config_from_mapping
from mt.config.plan import DataPlan, StageEnd, plan_data
from mt.config.schema import BatchConfig, TrainConfig
from mt.config.settled import Settled
from mt.data.tokens.batches import Update
from mt.data.tokens.plan import Plan, describe_stage, sampling_weights
from mt.errors import ConfigError, DataError
from mt.training.checkpoints import TrainState
from mt.training.launch import train
from mt.training.settle import Epochs, settle_length
from mt.training.trainer import Trainer

TEXTS = [{"src": f"{n}.de", "tgt": f"{n}.en"} for n in range(3)]


def data_of(*stages: dict[str, Any], **values: Any) -> DataPlan:
    data = {"train": TEXTS, "stages": list(stages)} | values
    return plan_data(config_from_mapping({"data": data}, "test").data)


def plans_of(data: DataPlan, kept: tuple[int, ...] = (100, 50, 30)) -> list[Plan]:
    pairs = store_of_lengths(np.full(sum(kept), 4, np.uint16), kept=kept)
    batch = BatchConfig(tokens_per_update=50, tokens_per_batch=50)
    return [Plan(pairs, sampling_weights(data, stage, kept), batch, 1) for stage in data.stages]


def test_each_stage_has_its_mixture_and_its_changes() -> None:
    """Where it says nothing, those of the section data; a text of weight 0 never comes."""
    data = data_of(
        {"until": {"updates": 9}},
        {"until": {"updates": 9}, "weights": [1, 2, 0], "augment": {"typos": 0.5}},
        {"weights": [0, 1, 5]}, train=[TEXTS[0] | {"weight": 0.5}, *TEXTS[1:]],
        augment={"typos": 0.1},
    )  # fmt: skip
    plans = plans_of(data)
    assert [plan.drawn for plan in plans] == [[100, 100, 60], [100, 100, 0], [0, 50, 150]]
    seen = np.concatenate([batch for update in plans[1].updates(0) for batch in update])
    assert np.bincount(seen, minlength=180).tolist() == [1] * 100 + [2] * 50 + [0] * 30
    assert [stage.augment and stage.augment.typos for stage in data.stages] == [0.1, 0.5, 0.1]
    end = data.stages[1].end(100, None)
    first, epoch, *mixture = describe_stage(data, 1, end, (100, 50, 30), plans[1].drawn)
    assert says(first, "data.stages[1]", "stage 2 of 3", "until 9 updates")
    assert says(epoch, "an epoch", "200 sentences")
    assert says(mixture[1], "data.train[1]", "weight 2", "50.00% of an epoch", "100 sentences")
    first, *_ = describe_stage(data, 1, StageEnd(epochs=1.0), (100, 50, 30), plans[1].drawn)
    assert first.endswith("until 1 epoch")
    first, *_ = describe_stage(data, 2, data.stages[2].end(100, None), (9, 9, 9), [0, 9, 9])
    assert first.endswith("stage 3 of 3, to the end")
    with raises_saying(DataError, "data.stages", "no pair is left"):
        plans_of(data_of({"weights": [0, 0, 1]}), (9, 9, 0))


@pytest.mark.parametrize(
    ("end", "ends_after"),
    [
        (StageEnd(updates=7), 7),
        (StageEnd(epochs=2.0), 36),  # of 18: 180 pairs of 5 tokens
        (StageEnd(epochs=1.5), 27),
    ],
)
def test_the_end_of_a_stage_by_hand(end: StageEnd, ends_after: int) -> None:
    """From the middle of an epoch on, the next one begins with another epoch."""
    of = len(plans_of(data_of({}))[0].updates(0))
    state = TrainState(epoch=3, stage_start=3)
    for number in range(100):
        state.advance(Update(3 + number // of, number % of, of, [], 50))
        if state.has_reached(end):
            break
    assert state.step == ends_after
    epoch = 3 + state.step // of + (state.step % of > 0)
    state.begin_stage(1)
    assert (state.stage, state.epoch, state.update, state.stage_start) == (1, epoch, 0, epoch)
    assert not state.has_reached(end)
    assert not state.has_reached(StageEnd())


@pytest.mark.parametrize(
    ("until", "steps"), [({"updates": 180}, 420), ({"share": 0.34}, 420), ({"updates": 15}, 365)]
)
def test_epochs_of_a_training_in_stages(until: dict[str, Any], steps: int) -> None:
    """Of 36, the first ones of 15 updates and the others of 10."""
    data = data_of({"until": until, "weights": [1, 1, 0]}, {"weights": [1, 0, 0]}, valid=TEXTS[0])
    config = config_from_mapping({"train": {"max_epochs": 36}}, "test")
    epochs = Epochs(data, plans_of(data), config.train)
    log: Any = SimpleNamespace(say=str)
    updater: Any = None  # only what is timed needs it
    settled, seconds = settle_length(Settled(), epochs, updater, 0, log)
    assert (settled.updates, seconds) == (steps, None)
    assert epochs.within(steps) == pytest.approx(36)


def test_a_longer_training_keeps_the_ends_of_stages_that_are_over() -> None:
    """Twelve epochs of 15 updates are done; of 40 epochs, the others have 10."""
    data = data_of({"until": {"share": 0.5}, "weights": [1, 1, 0]}, {"weights": [1, 0, 0]})
    plans, train_config = plans_of(data), TrainConfig(max_epochs=40, max_steps=10**9)
    over = [StageEnd(epochs=12.0)]
    epochs = Epochs(data, plans, train_config, over=over)
    assert epochs.updates(40) == 12 * 15 + 28 * 10
    assert epochs.ends(40) == [*over, StageEnd()]
    assert epochs.within(12 * 15 + 70) == pytest.approx(19)
    alone = Epochs(data_of({}), plans[1:], train_config, over=over)  # the config has no stages now
    assert alone.ends(40) == [StageEnd()]
    assert Epochs(data, plans, train_config).updates(40) == 20 * 15 + 20 * 10
    state = TrainState(stage=1, stage_epochs=2.0, stage_updates=20)
    assert [*epochs.by_stage(state, epochs.ends(40), 260)] == [(1, 260)]
    state = TrainState(stage_epochs=2.0, stage_updates=30)
    assert [*epochs.by_stage(state, epochs.ends(40), 430)] == [(0, 150), (1, 280)]
    assert [*epochs.by_stage(state, [StageEnd(50), StageEnd()], 40)] == [(0, 20), (1, 20)]
    assert [*epochs.by_stage(state, [StageEnd(20), StageEnd()], 40)] == [(0, 0), (1, 40)]


def test_a_share_is_of_the_updates_where_those_end_the_training_first() -> None:
    data = data_of(
        {"until": {"share": 0.5}, "weights": [1, 1, 0]}, {"weights": [1, 0, 0]}, valid=TEXTS[0]
    )
    plans = plans_of(data)  # epochs of 15 and of 10 updates
    for most, end in [(250, 10.0), (249, 10.0), (125, 5.0), (12, 0.48)]:
        epochs = Epochs(data, plans, TrainConfig(max_epochs=20, max_steps=most))
        first, last = epochs.ends(20.0)
        assert (first.epochs, last) == (pytest.approx(end), StageEnd())
    ends = Epochs(data, plans, TrainConfig(max_steps=30)).ends(None)
    assert ends == [StageEnd(updates=15), StageEnd()]


def test_a_stage_without_an_update_is_told_before_training(
    trainer_of: TrainerOf, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two epochs both stages before have one, 0.6 and 0.39 of them being rounded."""
    stages = [{"until": {"share": 0.6}}, {"until": {"share": 0.39}}, {}]
    for given, told in ((stages, True), ([{"until": {"updates": 1}}, {}], False)):
        trainer_of(BLIND, {"data": {"stages": given}}, train={"max_epochs": 2, "max_steps": 10**9})
        err = capsys.readouterr().err
        said = "warning: data.stages[2]: has no update; lower until of those before\n"
        assert (said in err, "warning" in err) == (told, told)


def test_faults_of_stages() -> None:
    rows: list[Any] = [
        ([{}, {}], ["data.stages[0].until", "{updates: 2000}", "nothing"]),
        ([{"until": {"updates": 3}}], ["data.stages[0].until", "null", "last stage"]),
        ([{"until": {"stall": 3}}, {}], ["data.stages[0].until.stall", "removed", "a share"]),
        ([{"weights": [1, 1]}], ["data.stages[0].weights", "3 texts", "[1.0, 1.0]", "0 leaves"]),
        ([{"weights": [0, 0, 0]}], ["data.stages[0].weights", "above 0", "[0.0, 0.0, 0.0]"]),
        ([{"shares": [0.5, 0, 0.4]}], ["data.stages[0].shares", "removed", "weights"]),
        ([{"until": {"share": 0.5, "updates": 1}}, {}], ["data.stages[0].until", "or", "share"]),
        ([{"until": {"update": 3}}, {}], ["data.stages[0].until.update", "updates"]),
        ([{"augment": {"caps": 0.9}}], ["data.stages[0].augment.caps", "was removed"]),
    ]
    for stages, said in rows:
        with raises_saying(ConfigError, *said):
            data_of(*stages)


STAGES = {
    "train": {"max_steps": 12, "valid_every": 4, "log_every": 3, "ema": None},
    "decode": {"beam_size": 1},
}


@pytest.fixture
def staged(
    interruptible: Mapped, short_corpus: dict[str, str], tmp_path: Path, monkeypatch: Any
) -> Callable[..., tuple[int, Path]]:
    """`staged("run", 2, 8)`: train both directions with changes, one after 3 updates, then both.

    A signal stops it after updates 2 and 8.
    """
    changes = {"typos": 0.4, "noise": 0.3}
    stages = [
        {"until": {"updates": 3}, "augment": changes},
        {"until": {"updates": 5}, "weights": [1, 0]},
        {"weights": [1, 1], "augment": changes},
    ]
    texts = [short_corpus, short_corpus | {"reverse": True}]
    values = STAGES | {"data": {"train": texts, "stages": stages}}

    def run(name: str, *stops: int, **more: Any) -> tuple[int, Path]:
        def request(self: Trainer) -> int:
            return signal.SIGTERM + 1 if self.state.step in stops else 0

        monkeypatch.setattr(Trainer, "_request", request)
        config = config_of(interruptible, values, **more)
        return train(config, tmp_path / name, "cpu").exit_code, tmp_path / name

    return run


@pytest.mark.slow
def test_a_run_stopped_in_stages_and_at_their_ends_has_the_same_weights(
    staged: Callable[..., tuple[int, Path]],
) -> None:
    code, whole = staged("whole")
    assert code == 0
    stops = (2, 3, 6, 8, 10)
    for _ in stops:
        code, resumed = staged("resumed", *stops)
        assert code == 128 + signal.SIGTERM
    assert staged("resumed", *stops) == (0, resumed)
    check_equal_states(*(run / "checkpoints" / "last" for run in (resumed, whole)))
    assert weights_of(whole) == weights_of(resumed)
    lines = metrics_of(resumed)
    begun = [line for line in lines if line["kind"] == "stage"]
    assert begun == [line for line in metrics_of(whole) if line["kind"] == "stage"]
    assert [(line["stage"], line["step"]) for line in begun] == [(1, 3), (2, 8)]
    assert begun[0]["drawn"][1] == 0
    assert [line["stage"] for line in lines if line["kind"] == "train"] == [0, 1, 2, 2]
    log = log_of(whole)
    assert says(log, "update 1, epoch 0:", "stage 1 of 3, until 3 updates", "50.00% of an epoch")
    assert says(log, "update 9, epoch 2:", "stage 3 of 3, to the end", "50.00% of an epoch")
