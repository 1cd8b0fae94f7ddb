"""On a GPU: mixed precision trains to the loss of fp32, and translations equal the CPU's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Mapped, config_of, log_of, metrics_of

from mt.data.tokens.batches import Update, collate
from mt.model.attention import attend, attention_bias
from mt.model.checkpoint import load_model
from mt.runtime.devices import choose_device
from mt.runtime.distributed import World
from mt.search.engine import TorchEngine
from mt.search.inference import Inference
from mt.search.options import EngineOptions, SearchOptions
from mt.training.launch import train
from mt.training.prepare import prepare
from mt.training.runlog import RunLog
from mt.training.trainer import Trainer
from mt.translate.load import load_translator
from mt.translate.loaded_engine import LoadedEngine
from mt.translate.translator import make_translator

no_gpu = not torch.cuda.is_available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(no_gpu, reason="no CUDA device")]


def trained_loss(mapping: Mapped, precision: str, folder: Path) -> float:
    """Validation loss after 200 updates on the GPU."""
    changes = {
        "model": {"dropout": 0.0},
        "train": {"precision": precision, "max_steps": 200, "valid_every": 200, "log_every": 50},
    }
    config = config_of(mapping, changes)
    run = folder / precision
    train(config, run, "cuda")
    device = choose_device("cuda", precision)
    with RunLog(run, 200) as log:
        trainer = Trainer(prepare(config, device, log), log)
        trainer.resume()
    assert trainer.validation is not None
    losses = trainer.validation.losses(trainer.updater.eval_model, device, World())
    return sum(losses) / trainer.validation.n_tgt


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_trains_as_fp32(tiny_mapping: Mapped, tmp_path: Path, precision: str) -> None:
    """The tiny task goes from 5.8 to below 1 nat; the precisions must agree within 0.15."""
    exact, low = (trained_loss(tiny_mapping, name, tmp_path) for name in ("fp32", precision))
    assert exact < 1.0
    assert low == pytest.approx(exact, abs=0.15)


def test_translations_equal_those_of_the_cpu(tiny_run: Path, tiny_corpus: Path) -> None:
    lines = (tiny_corpus / "test.src").read_text(encoding="utf-8").split("\n")[:-1]
    loaded = load_model(tiny_run)
    for beam_size in (1, 4):
        decode = loaded.config.decode.model_copy(update={"beam_size": beam_size})
        texts = []
        for name in ("cpu", "cuda"):
            device = choose_device(name, "fp32")
            engine = TorchEngine(Inference(load_model(tiny_run).model, device), decode)
            on_device = LoadedEngine(engine=engine, tokenizer=loaded.tokenizer, max_source=32)
            texts.append([one.texts for one in make_translator(on_device).translate(lines)])
        # By a worker process, as a large text.
        search = SearchOptions(beam_size=beam_size)
        options = EngineOptions(models=[tiny_run], precision="fp32", device="cuda:0")
        with load_translator(search, options, large=True) as translator:
            assert translator.loaded.pool is not None
            texts.append([one.texts for one in translator.translate(lines)])
        assert texts[0] == texts[1] == texts[2]


def test_a_run_resumes_on_a_gpu(tiny_mapping: Mapped, tmp_path: Path) -> None:
    """The step counter, the optimiser and the scaler come back; the run ends at its last step."""
    run = tmp_path / "run"
    for max_steps in (4, 8):
        config = config_of(tiny_mapping, train={"precision": "fp16", "max_steps": max_steps})
        assert train(config, run, "cuda").exit_code == 0
    assert load_model(run / "checkpoints" / "last").meta["step"] == 8


# Inductor warns about every GPU with TF32 once it compiles a product in fp32.
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_a_compiled_model_trains_with_one_compilation(tiny_mapping: Mapped, tmp_path: Path) -> None:
    """`compile: true` raises where `auto` would train uncompiled; the other tests do not compile.

    The batches are measured by `auto`, and the losses are those of the plain model.
    """
    losses = {}
    for wanted in (True, False):
        changes = {
            "model": {"dropout": 0.0},
            "batch": {"tokens_per_batch": "auto"},
            "train": {"precision": "fp32", "compile": wanted, "max_steps": 40, "log_every": 40},
        }
        config = config_of(tiny_mapping, changes)
        run = tmp_path / str(wanted)
        assert train(config, run, "cuda").exit_code == 0
        log = log_of(run)
        assert ("the model is compiled" in log) == wanted
        assert "compiled again" not in log
        losses[wanted] = [line["nll"] for line in metrics_of(run, "valid")]
    assert losses[True] == pytest.approx(losses[False], rel=0.02)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_one_rank_over_nccl_has_equal_gradients(tiny_mapping: Mapped, tmp_path: Path) -> None:
    """Compiled, two batches an update."""
    changes = {"model": {"dropout": 0.0}, "train": {"compile": True}}
    config = config_of(tiny_mapping, changes)
    plain = config.with_values({"train.compile": False})
    device = choose_device("cuda", "fp32")
    store = f"file://{tmp_path}/rendezvous"
    torch.distributed.init_process_group(
        "cpu:gloo,cuda:nccl", init_method=store, rank=0, world_size=1
    )
    try:
        gradients = []
        for one, world in (
            (plain, World()),
            (config, World(patient_group=torch.distributed.new_group(backend="gloo"))),
        ):
            with RunLog(tmp_path, 1) as log:
                prepared = prepare(one, device, log, world)
            updater = prepared.updater
            pairs = prepared.plans[0].pairs
            batches = [collate(pairs.pairs(np.arange(*ends))) for ends in ((0, 40), (40, 64))]
            n_tgt = sum(batch.n_tgt for batch in batches)
            updater.accumulate_gradients(Update(0, 0, 1, batches, n_tgt), 0)
            gradients.append([weight.grad for weight in updater.model.parameters()])
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_weights_are_dropped_and_the_rest_scaled(dtype: torch.dtype) -> None:
    """As on a CPU: a quarter is 0 within 5 standard errors, the others are 4/3 as large."""
    torch.manual_seed(1)
    q = torch.zeros(8, 4, 64, 64, dtype=dtype, device="cuda")
    eye = torch.eye(64, dtype=dtype, device="cuda").repeat(8, 4, 1, 1)
    bias = attention_bias(torch.ones(8, 1, 1, 64, dtype=torch.bool, device="cuda"), dtype)
    weights = attend(q, q, eye, bias, 0.25).double()
    error = (0.25 * 0.75 / weights.numel()) ** 0.5
    assert ((weights == 0).double().mean() - 0.25).abs() < 5 * error
    torch.testing.assert_close(weights[weights != 0].mean().item() * 64, 4 / 3, rtol=1e-2, atol=0)
    assert (attend(q, q, eye, bias) > 0).all()
