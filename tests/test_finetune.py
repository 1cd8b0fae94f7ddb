"""Fine-tuning: where the first weights come from, piece by piece, and what of them never changes."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import DIGITS, Mt, merged, refused, write_lines
from sentencepiece import SentencePieceProcessor
from torch import Tensor

from mt.config.load import config_from_mapping
from mt.config.schema import Config
from mt.errors import CheckpointError, ConfigError, MtError
from mt.model import checkpoint
from mt.model.checkpoint import LoadedModel, load_model
from mt.model.transformer import Transformer
from mt.runtime.devices import choose_device
from mt.training.finetune import PARTS, _match_rows, freeze, resolve_init_from
from mt.training.launch import train
from mt.training.prepare import prepare
from mt.training.runlog import RunLog
from mt.training.trainer import Trainer
from mt.training.update import Updater

Mapped = Mapping[str, Any]
QUICK = {
    "decode": {"beam_size": 1, "max_len_factor": 1.0, "max_len_extra": 1},
    "data": {"test": []},
}
STACKS = ["encoder", "decoder"]
SUBLAYERS = ["self_attention", "cross_attention", "feed_forward"]
WORDS = ["source_embedding", "target_embedding", "output"]


@pytest.fixture(scope="module")
def settings(tiny_mapping: Mapped) -> Mapped:
    return merged(tiny_mapping, QUICK)


@pytest.fixture(scope="module")
def other_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.src, train.tgt: as the tiny corpus without zero and one, with eleven and twelve and a rare letter."""
    folder = tmp_path_factory.mktemp("other")
    words = dict(list(DIGITS.items())[2:]) | {"elf": "eleven", "zwölf": "twelve", "ω": "omega"}
    lines = [[first, second, third] for first in words for second in words for third in words]
    write_lines(folder / "train.src", [" ".join(line) for line in lines])
    write_lines(folder / "train.tgt", [" ".join(words[word] for word in line) for line in lines])
    return folder


@pytest.fixture(scope="module")
def base_of(settings: Mapped, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`base_of(model={...})`: a run of four updates with such a model; made once for each."""
    made: dict[str, Path] = {}

    def run(**changes: Any) -> Path:
        key = json.dumps(changes, sort_keys=True)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("base") / "run"
            short = merged(settings, {"train": {"max_steps": 4}})
            train(config_from_mapping(merged(short, changes), "base"), made[key], "cpu")
        return made[key]

    return run


class Started:
    """A trainer at the moment before its first update, and what it said."""

    def __init__(self, config: Config, run: Path) -> None:
        (run / "checkpoints").mkdir(parents=True, exist_ok=True)
        self.base: LoadedModel | None = resolve_init_from(config)
        self.config, self.run = config, run
        with RunLog(run, 1) as log:
            device = choose_device("cpu", "fp32")
            prepared = prepare(config, run, device, log, base=self.base)
            self.trainer = Trainer(prepared, run, log)
            self.trainer.resume(self.base)
        self.said = [
            line[20:] for line in (run / "train.log").read_text(encoding="utf-8").splitlines()
        ]

    def weights(self) -> dict[str, Tensor]:
        named = self.trainer.updater.model.named_parameters(remove_duplicate=False)
        return {name: tensor.detach().clone() for name, tensor in named}


@pytest.fixture
def start(settings: Mapped, tmp_path: Path) -> Callable[..., Started]:
    """`start(base, {"model": ...}, train={...})`: the tiny config with changes, fine-tuning `base`."""

    def made(base: Path | None, *changes: Mapped, **sections: Any) -> Started:
        mapping = merged(settings, {"train": {"init_from": base and str(base)}})
        for change in (*changes, sections):
            mapping = merged(mapping, change)
        return Started(config_from_mapping(mapping, "test"), Path(tempfile.mkdtemp(dir=tmp_path)))

    return made


def on(corpus: Path, **tokenizer: Any) -> dict[str, Any]:
    """Another corpus, with a vocabulary of its own; validation stays."""
    source = {"src": str(corpus / "train.src"), "tgt": str(corpus / "train.tgt")}
    return {"data": {"train": [source]}, "tokenizer": tokenizer, "train": {"new_vocabulary": True}}


def pieces_of(run: Path, side: str = "") -> list[str]:
    """A vocabulary as SentencePiece itself tells it."""
    joint = run / "tokenizer.model"
    path = joint if joint.exists() else run / f"tokenizer.{side}.model"
    processor = SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(i) for i in range(processor.piece_size())]


# --- the same vocabulary ----------------------------------------------------------------------


def test_before_any_update_it_is_the_model_that_it_starts_from(
    tiny_run: Path, start: Callable[..., Started], mt: Mt, tiny_corpus: Path
) -> None:
    """Another seed and another corpus: the same scores to the last digit, and the vocabulary travels along."""
    short = {"data": {"train": [{"src": "valid.src", "tgt": "valid.tgt"}]}, "run": {"seed": 9}}
    started = start(tiny_run, short, train={"ema": 0.9, "max_steps": 400})
    started.trainer.save()
    texts = ["--src", tiny_corpus / "test.src", "--tgt", tiny_corpus / "test.tgt", "--json"]
    before, after = (
        mt("score", "--model", tiny_run, *texts),
        mt("score", "--model", started.run, *texts),
    )
    assert before.code == after.code == 0
    assert before.out == after.out
    assert (started.run / "tokenizer.model").read_bytes() == (
        tiny_run / "tokenizer.model"
    ).read_bytes()
    state = checkpoint.load_state(started.run / "checkpoints" / "last")
    assert state["train"]["step"] == 0
    assert state["optimizer"]["state"] == {}
    for name, weight in checkpoint.weights_of(started.trainer.updater.model).items():
        assert torch.equal(state["weights"][name], weight)
        assert torch.equal(started.trainer.updater.ema.state_dict()[name], weight)  # type: ignore[union-attr]
    best = checkpoint.find_model(tiny_run)
    assert started.said[0] == (
        "tokenizer: kept from train.init_from (train.new_vocabulary: true learns one from this data)"
    )
    assert f"starts with the weights of {best}, update {int(best.name[5:])}" in started.said
    size = len(pieces_of(tiny_run))
    assert f"joint vocabulary: {size} pieces kept, 0 new, 0 dropped" in started.said


@pytest.mark.parametrize("way", ["run directory", "checkpoint", "exported folder", "relative path"])
def test_what_can_be_named(
    way: str,
    base_of: Callable[..., Path],
    start: Callable[..., Started],
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    base = base_of()
    named = base
    if way == "checkpoint":
        named = base / "checkpoints" / "last"
    elif way == "exported folder":
        named = tmp_path / "averaged"
        checkpoint.average_run(base, 1, named)
    elif way == "relative path":
        monkeypatch.chdir(base.parent)
        named = Path("run")
    started = start(named)
    assert started.base is not None
    expected = checkpoint.load_weights(base / "checkpoints" / "last")
    weights = checkpoint.weights_of(started.trainer.updater.model)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert started.config.train.init_from == str(named)


def test_dropout_and_training_may_differ(
    base_of: Callable[..., Path], start: Callable[..., Started]
) -> None:
    """Neither a shape nor the meaning of a weight is decided by them."""
    started = start(base_of(), model={"dropout": 0.3, "max_positions": 48}, optim={"peak_lr": 1e-4})
    assert started.trainer.updater.model.config.dropout == 0.3


# --- another vocabulary -----------------------------------------------------------------------


def test_pieces_by_hand() -> None:
    """Ids 0 to 3 are special, whatever text they are; the rest is found by text, else spelled, longest piece first."""
    special = ["<pad>", "<unk>", "<s>", "</s>"]
    old = [*special, "<0xC3>", "<0xA9>", "▁", "a", "b", "ab", "lost"]
    new = [*special, "ab", "▁aab", "é", "<0x41>", "x", "a", "pads", "▁ab"]
    carried = _match_rows(new, old)
    assert carried.kept == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 9), (9, 7)]
    assert carried.spelled == [
        (5, [6, 7, 9]),  # ▁ a ab
        (6, [4, 5]),  # é in its two bytes
        (7, []),  # a byte, not the letters of its name
        (8, []),
        (10, [7]),  # of pads only the a
        (11, [6, 9]),
    ]
    assert str(carried) == "6 pieces kept, 6 new, 5 dropped; 2 of the new ones start at random"
    rows, weight = torch.full((len(new), 2), -1.0), torch.arange(22.0).view(11, 2)
    carried.rows(rows, weight)
    assert rows[4].tolist() == [18.0, 19.0]
    assert rows[6].tolist() == [9.0, 10.0]  # the mean of 8, 9 and 10, 11
    assert rows[7].tolist() == rows[8].tolist() == [-1.0, -1.0]
    bias = torch.full((len(new),), -1.0)
    carried.rows(bias, torch.arange(11.0))
    assert bias[[4, 5, 6]].tolist() == [9.0, pytest.approx(22 / 3), 4.5]


SPLIT = {"joint": False, "vocab_size": 290}


@pytest.mark.parametrize(
    ("before", "now", "model"),
    [
        ({}, {"vocab_size": 300}, {}),
        (
            {},
            {"type": "unigram", "vocab_size": 310},
            {"tie_embeddings": False, "output_bias": True},
        ),
        ({}, SPLIT, {}),
        (SPLIT, {}, {"tie_embeddings": False}),
        (SPLIT, {"joint": False, "vocab_size": 300}, {}),
    ],
    ids=["joint", "untied", "joint to separate", "separate to joint", "separate"],
)
def test_rows_follow_their_pieces(
    before: Mapped,
    now: Mapped,
    model: Mapped,
    base_of: Callable[..., Path],
    start: Callable[..., Started],
    other_corpus: Path,
) -> None:
    base = base_of(tokenizer=before, model=model)
    tuned = start(base, on(other_corpus, **now), model=model)
    alone = start(None, on(other_corpus, **now), model=model, train={"new_vocabulary": False})
    old = dict(load_model(base).model.named_parameters(remove_duplicate=False))
    new, fresh = tuned.weights(), alone.weights()
    matrices = {
        "src_embedding.tokens.weight": "src",
        "tgt_embedding.tokens.weight": "tgt",
        "output.weight": "tgt",
    }
    matrices |= {"output.bias": "tgt"} if "output.bias" in new else {}
    for name, weight in new.items():
        if name not in matrices:
            assert torch.equal(weight, old[name]), name
    for name, side in matrices.items():
        theirs, ours = pieces_of(base, side), pieces_of(tuned.run, side)
        both = set(theirs) & set(ours)
        assert 4 + 256 < len(both) < len(ours)
        for piece in both:
            assert torch.equal(new[name][ours.index(piece)], old[name][theirs.index(piece)]), (
                name,
                piece,
            )
        for piece in set(ours) - both:
            assert not torch.equal(new[name][ours.index(piece)], fresh[name][ours.index(piece)]), (
                piece
            )
        if "ω" in ours:  # learned by none of the first runs
            in_bytes = [old[name][theirs.index(byte)] for byte in ("<0xCF>", "<0x89>")]
            torch.testing.assert_close(new[name][ours.index("ω")], torch.stack(in_bytes).mean(0))
        label = {"src": "source", "tgt": "target"}[side]
        joint = before.get("joint", True) and now.get("joint", True)
        counts = f"{len(both)} pieces kept, {len(ours) - len(both)} new, {len(theirs) - len(both)} dropped"
        assert f"{'joint' if joint else label} vocabulary: {counts}" in tuned.said
    assert not any(line.startswith("tokenizer: kept") for line in tuned.said)


def test_what_no_old_piece_spells_starts_as_in_a_run_of_its_own(
    base_of: Callable[..., Path], start: Callable[..., Started], other_corpus: Path
) -> None:
    """Without bytes before, the 256 of them are new now, and have no text to be spelled by."""
    base = base_of(tokenizer={"byte_fallback": False, "vocab_size": 60})
    tuned, alone = (
        start(base, on(other_corpus)),
        start(None, on(other_corpus), train={"new_vocabulary": False}),
    )
    ours = pieces_of(tuned.run)
    name = "tgt_embedding.tokens.weight"
    for piece in ("<0x00>", "<0xFF>", "ω"):
        assert torch.equal(
            tuned.weights()[name][ours.index(piece)], alone.weights()[name][ours.index(piece)]
        )
    (line,) = (line for line in tuned.said if line.startswith("joint vocabulary: "))
    assert int(re.search(r"; (\d+) of the new ones start at random$", line)[1]) >= 256  # type: ignore[index]


def test_learned_positions_are_cut_or_added_to(
    base_of: Callable[..., Path], start: Callable[..., Started]
) -> None:
    model = {"positions": "learned"}
    base = base_of(model=model)
    old = load_model(base).model.src_embedding.positions
    name = "src_embedding.positions"
    fewer = start(base, model=model | {"max_positions": 40})
    assert torch.equal(fewer.weights()[name], old[:40])
    assert not any("positions" in line for line in fewer.said)
    more = start(base, model=model | {"max_positions": 80})
    assert torch.equal(more.weights()[name][:64], old)
    assert more.weights()[name][64:].abs().min() > 0
    assert f"{name}: positions from 64 on start at random, max_positions was 64" in more.said


# --- frozen parts -----------------------------------------------------------------------------

SEPARATE = {
    "tokenizer": SPLIT,
    "model": {"tie_embeddings": False, "positions": "learned", "output_bias": True},
}
NAMES = {
    "source_embedding": {"src_embedding"},
    "target_embedding": {"tgt_embedding"},
    "output": {"output"},
    "encoder": {"encoder.0", "encoder_norm"},
    "decoder": {"decoder.0", "decoder_norm"},
    "self_attention": {
        "encoder.0.attention", "encoder.0.around_attention", "decoder.0.self_attention",
        "decoder.0.around_self_attention",
    },
    "cross_attention": {"decoder.0.cross_attention", "decoder.0.around_cross_attention"},
    "feed_forward": {
        f"{stack}.0.{name}" for stack in STACKS for name in ("feed_forward", "around_feed_forward")
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "parts",
    [
        *([part] for part in PARTS),
        ["encoder", "source_embedding"],
        [*WORDS, *SUBLAYERS],
        [*STACKS, *WORDS[:2]],
    ],
    ids="+".join,
)
def test_frozen_weights_stay_and_the_others_learn(
    parts: list[str], start: Callable[..., Started]
) -> None:
    """With weight decay and a mean of weights, after three updates; what is frozen has no gradient to begin with."""
    started = start(
        None, SEPARATE, train={"freeze": parts, "ema": 0.5}, optim={"weight_decay": 0.1}
    )
    before, trainer = started.weights(), started.trainer
    gradients: list[int] = []
    trainer.updater.optimizer.register_step_pre_hook(
        lambda *_: gradients.append(
            sum(p.grad is not None for p in trainer.updater.model.parameters())
        )
    )
    learn(trainer, 3)
    frozen = {
        name
        for name in before
        if any(name.startswith(f"{stem}.") for part in parts for stem in NAMES[part])
    }
    assert 0 < len(frozen) < len(before)
    averaged = dict(trainer.updater.ema.named_parameters()) if trainer.updater.ema else {}
    for name, weight in started.weights().items():
        assert torch.equal(weight, before[name]) == (name in frozen), name
        assert torch.equal(averaged[name], before[name]) == (name in frozen), name
    assert gradients == [len(before) - len(frozen)] * 3
    sizes = (
        sum(before[name].numel() for name in before.keys() - frozen),
        sum(w.numel() for w in before.values()),
    )
    assert f"frozen: {', '.join(parts)}; {sizes[0]:,} of {sizes[1]:,} weights learn" in started.said


def learn(trainer: Trainer, updates: int) -> None:
    from mt.data.loader import Prefetcher

    with Prefetcher(trainer.plan, 0, 0) as feed:
        for update in feed:
            trainer.updater.train_step(update, trainer.state.step)
            trainer.state.step += 1
            if trainer.state.step == updates:
                return


def test_tied_matrices_are_frozen_together(start: Callable[..., Started]) -> None:
    started = start(None, train={"freeze": WORDS})
    before = started.weights()
    learn(started.trainer, 2)
    after = started.weights()
    for name in ("src_embedding.tokens.weight", "tgt_embedding.tokens.weight", "output.weight"):
        assert torch.equal(after[name], before[name])
    name = "encoder.0.attention.output.weight"
    assert not torch.equal(after[name], before[name])


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(("tied", "joint"), [(True, True), (True, False), (False, True)])
def test_what_cannot_be_frozen(norm: str, tied: bool, joint: bool, settings: Mapped) -> None:
    """Of all 255 sets of parts: refused are those that part a shared matrix, and those that leave nothing."""
    model = merged(
        settings, {"model": {"norm": norm, "tie_embeddings": tied, "positions": "sinusoidal"}}
    )
    config = config_from_mapping(model, "test").model
    shared = set(WORDS if joint else WORDS[1:]) if tied else set()
    with torch.device("meta"):
        built = Transformer(config, 8, 8, joint)
    refusals = {"one matrix with": 0, "must leave something to learn": 0}
    for bits in range(1, 2 ** len(PARTS)):
        parts = {part for i, part in enumerate(PARTS) if bits >> i & 1}
        encoder = "encoder" in parts or (
            norm == "post" and {"self_attention", "feed_forward"} <= parts
        )
        decoder = "decoder" in parts or (norm == "post" and set(SUBLAYERS) <= parts)
        expected = None
        if 0 < len(shared & parts) < len(shared):
            expected = "one matrix with"
        elif encoder and decoder and set(WORDS) <= parts:
            expected = "must leave something to learn"
        built.requires_grad_(True)
        if expected is None:
            freeze(built, sorted(parts))
            assert any(parameter.requires_grad for parameter in built.parameters())
            continue
        refusals[expected] += 1
        with pytest.raises(ConfigError, match=expected):
            freeze(built, sorted(parts))
    assert refusals["must leave something to learn"] > 0
    assert (refusals["one matrix with"] > 0) == tied


# --- going on, and what is recorded -----------------------------------------------------------


@pytest.mark.parametrize("vocabulary", ["kept", "its own"])
def test_killed_and_started_again_is_undisturbed(
    vocabulary: str,
    base_of: Callable[..., Path],
    settings: Mapped,
    other_corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After the first checkpoint, when the model that it began with is gone; before it, it begins again."""
    base = tmp_path / "base"
    shutil.copytree(base_of(), base, symlinks=True)
    given = {
        "init_from": str(base),
        "freeze": ["encoder"],
        "ema": 0.9,
        "max_steps": 8,
        "valid_every": 4,
    }
    mapping = merged(
        settings,
        {"train": given} if vocabulary == "kept" else merged(on(other_corpus), {"train": given}),
    )
    config = config_from_mapping(mapping, "test")
    assert train(config, tmp_path / "whole", "cpu").exit_code == 0
    real, seen = Updater.train_step, [0]

    def killed(updater: Updater, *update: Any) -> Any:
        seen[0] += 1
        if seen[0] in (3, 3 + 6):
            raise RuntimeError
        return real(updater, *update)

    monkeypatch.setattr(Updater, "train_step", killed)
    run = tmp_path / "run"
    for _ in range(2):
        with pytest.raises(RuntimeError):
            train(config, run, "cpu")
    assert [folder.name for folder in checkpoint.checkpoints(run)] == ["step-00000004"]
    origin = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["init_from"]
    shutil.rmtree(base)
    assert train(config, run, "cpu").exit_code == 0
    for folder in checkpoint.checkpoints(tmp_path / "whole"):
        ours = run / "checkpoints" / folder.name
        assert (ours / "model.safetensors").read_bytes() == (
            folder / "model.safetensors"
        ).read_bytes()
        states = [checkpoint.load_state(path)["optimizer"]["state"] for path in (ours, folder)]
        assert states[0].keys() == states[1].keys()
        assert all(
            torch.equal(states[0][i][key], states[1][i][key])
            for i in states[0]
            for key in states[0][i]
        )
        assert checkpoint.read_meta(ours, [])["init_from"] == origin
    assert json.loads((run / "manifest.json").read_text(encoding="utf-8"))["init_from"] == origin


def test_what_it_began_with_is_recorded(
    base_of: Callable[..., Path], settings: Mapped, tmp_path: Path
) -> None:
    base = base_of()
    best = checkpoint.find_model(base)
    config = config_from_mapping(
        merged(settings, {"train": {"init_from": str(base), "max_steps": 1}}), "test"
    )
    assert train(config, tmp_path / "run", "cpu").exit_code == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))
    checksum = json.loads((best / "meta.json").read_text(encoding="utf-8"))["sha256"][
        "model.safetensors"
    ]
    assert manifest["init_from"] == {"folder": str(best), "step": 4, "sha256": checksum}
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert saved["train"]["init_from"] == str(base)
    assert "init_from" not in json.loads((base / "manifest.json").read_text(encoding="utf-8"))


def test_a_run_can_begin_anew_with_its_own_weights(
    base_of: Callable[..., Path], settings: Mapped, tmp_path: Path
) -> None:
    """`--fresh` renames the folder that is read from; its weights are in memory by then."""
    run = tmp_path / "run"
    shutil.copytree(base_of(), run, symlinks=True)
    config = config_from_mapping(
        merged(settings, {"train": {"init_from": str(run), "max_steps": 1}}), "test"
    )
    assert train(config, run, "cpu", fresh=True).exit_code == 0
    assert "pieces kept, 0 new, 0 dropped" in (run / "train.log").read_text(encoding="utf-8")


# --- messages ---------------------------------------------------------------------------------


def message(config: Config, run: Path, kind: type[MtError]) -> str:
    with pytest.raises(kind) as error:
        train(config, run, "cpu")
    return str(error.value)


def tuned(settings: Mapped, base: Path, *changes: Mapped) -> Config:
    mapping = merged(settings, {"train": {"init_from": str(base)}})
    for change in changes:
        mapping = merged(mapping, change)
    return config_from_mapping(mapping, "test")


def test_a_folder_without_a_model(
    base_of: Callable[..., Path], settings: Mapped, tmp_path: Path
) -> None:
    """Said before anything is written."""
    empty, new, damaged = tmp_path / "empty", tmp_path / "new", tmp_path / "damaged"
    empty.mkdir()
    (new / "checkpoints").mkdir(parents=True)
    shutil.copytree(base_of(), damaged, symlinks=True)
    weights = checkpoint.find_model(damaged) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    start = "must be a run directory, a checkpoint or an exported folder;"
    for base, expected in (
        (
            tmp_path / "no",
            f"train.init_from {tmp_path / 'no'}: {start} nothing exists at this path",
        ),
        (
            empty,
            f"train.init_from {empty}: {start} it contains neither meta.json nor checkpoints/best",
        ),
        (
            new,
            f"train.init_from {new}: {start} this run has not saved a checkpoint yet; wait for its first validation",
        ),
        (
            damaged,
            f"train.init_from {damaged}: {weights}: damaged, its checksum differs from the one in meta.json; use "
            "another checkpoint, or copy this one again",
        ),
    ):
        assert message(tuned(settings, base), tmp_path / "run", CheckpointError) == expected
    assert not (tmp_path / "run").exists()


def test_the_command_says_it_and_ends_with_2(settings: Mapped, tmp_path: Path, mt: Mt) -> None:
    config = tmp_path / "tuned.yaml"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    expected = (
        "train.init_from no/run: must be a run directory, a checkpoint or an exported folder; nothing exists at this "
        "path"
    )
    sets = ["-c", config, "--set", "train.init_from=no/run"]
    assert refused(mt("train", *sets, "--run-dir", tmp_path / "run")) == expected
    assert refused(mt("config", "check", *sets)) == expected
    assert not (tmp_path / "run").exists()
    freezing = ["-c", config, "--set", "train.freeze=[output]"]
    assert refused(mt("config", "check", *freezing)).startswith(
        "train.freeze: output is one matrix with "
    )


MAKE = "weights go into a model of the same make only, but"
REMEDY = "set what differs as it is there"
ONE = "and one cannot take over two; set"


@pytest.mark.parametrize(
    ("before", "now", "faults"),
    [
        (
            {},
            {"model": {"d_model": 64, "n_encoder_layers": 2, "attention_bias": False}},
            [
                f"{MAKE} model.d_model is 32 there and 64 here, model.n_encoder_layers is 1 there and 2 here, "
                f"model.attention_bias is true there and false here; {REMEDY}"
            ],
        ),
        (
            {},
            {"model": {"n_heads": 4}, "tokenizer": {"vocab_size": 400, "type": "unigram"}},
            [
                f"{MAKE} model.n_heads is 2 there and 4 here; {REMEDY}",
                "its vocabulary is kept, but tokenizer.vocab_size is 320 there and 400 here, tokenizer.type is bpe "
                f"there and unigram here; {REMEDY}, or train.new_vocabulary to true to learn another vocabulary from "
                "this data",
            ],
        ),
        (
            {"tokenizer": SPLIT},
            {"train": {"new_vocabulary": True}},
            [
                f"source and target embedding are two matrices there, {ONE} tokenizer.joint or model.tie_embeddings to "
                "false"
            ],
        ),
        (
            {"model": {"tie_embeddings": False}},
            {},
            [
                f"target embedding and output are two matrices there, {ONE} model.tie_embeddings to false"
            ],
        ),
    ],
    ids=["model", "vocabulary", "joint", "tied"],
)
def test_weights_that_cannot_be_carried_over(
    before: Mapped,
    now: Mapped,
    faults: Sequence[str],
    base_of: Callable[..., Path],
    settings: Mapped,
    tmp_path: Path,
) -> None:
    base = base_of(**before)
    said = message(tuned(settings, base, now), tmp_path / "run", ConfigError)
    assert said.split("\n") == [f"train.init_from {base}: {fault}" for fault in faults]
    assert not (tmp_path / "run").exists()


def test_what_is_frozen_by_a_shared_matrix_or_all_of_it(settings: Mapped, tmp_path: Path) -> None:
    def said(**changes: Any) -> str:
        return message(
            config_from_mapping(merged(settings, changes), "test"), tmp_path / "run", ConfigError
        )

    assert said(train={"freeze": ["encoder", "source_embedding"]}) == (
        "train.freeze: source_embedding is one matrix with output here (model.tie_embeddings, tokenizer.joint), and "
        "cannot be frozen without it; add that, or set model.tie_embeddings to false"
    )
    everything = [*STACKS, *WORDS]
    assert said(train={"freeze": everything}) == (
        "train.freeze: must leave something to learn, found encoder, decoder, source_embedding, target_embedding, "
        "output; take a part out"
    )
    assert not (tmp_path / "run").exists()


def test_a_run_cannot_get_another_beginning(
    base_of: Callable[..., Path], settings: Mapped, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(base_of(), run, symlinks=True)
    config = tuned(settings, base_of(), {"train": {"freeze": ["encoder"], "new_vocabulary": True}})
    assert message(config, run, CheckpointError) == (
        f"run directory {run}: the initial weights, frozen parts and optimiser of a run "
        "cannot change "
        f"(train.init_from: was None, now {base_of()}; train.new_vocabulary: was False, now True; "
        "train.freeze: was [], now ['encoder']); "
        "set them back (train.init_from is not read again), or give another --run-dir, where train.init_from can name "
        "this run, or --fresh to set this one aside"
    )


def test_messages_of_the_keys() -> None:
    with pytest.raises(ConfigError) as error:
        config_from_mapping(
            {"train": {"freeze": ["encodr"], "init_from": 3, "new_vocabulary": 1}}, "x.yaml"
        )
    parts = ", ".join(list(PARTS)[:-1])
    assert str(error.value).split("\n") == [
        "x.yaml: train.init_from: must be text, found 3; put the text in quotes",
        "x.yaml: train.new_vocabulary: must be true or false, found 1",
        f"x.yaml: train.freeze[0]: must be {parts} or feed_forward, found 'encodr'; did you mean encoder?",
    ]
    with pytest.raises(ConfigError) as error:
        config_from_mapping({"train": {"freeze": "encoder"}}, "x.yaml")
    assert (
        str(error.value) == "x.yaml: train.freeze: must be a list, found 'encoder'; write [encoder]"
    )
    with pytest.raises(ConfigError) as error:
        config_from_mapping({"train": {"new_vocabulary": True}}, "x.yaml")
    assert str(error.value) == (
        "x.yaml: train.new_vocabulary: must be false without train.init_from, found true; a run of its own learns one "
        "anyway"
    )
