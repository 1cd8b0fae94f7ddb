"""`scripts/gpu_check.py --levers`: its attention, its rule, and a tiny run on a CPU."""

from __future__ import annotations

import importlib.util
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_check import LEVERS
from gpu_runs import bare_environment, run
from gpu_sections import attention_ways, attentions
from gpu_sections.attention_ways import WAYS, Way, sentence_of, tile_ranges
from gpu_sections.decision import (
    AGAIN,
    EFFICIENT,
    LAUNCHED,
    REPLAYED,
    TODAY,
    Timings,
    decide,
    table_of,
)  # fmt: skip
from gpu_sections.report import Item, Report, read_items
from gpu_sections.setting import Setting
from messages import says
from packed_rows import attend_each
from torch import Tensor

from mt.data.tokens.batches import Packed


def where(lengths: list[int]) -> Packed:
    """Sentences of these lengths in a row."""
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    places = torch.cat([torch.arange(length) for length in lengths])
    return Packed(places, starts, max(lengths))


def each_alone(
    q: Tensor, k: Tensor, v: Tensor, queries: Packed, keys: Packed, causal: bool
) -> Tensor:
    """`attend_packed`, a sentence at a time."""
    q, k, v = (part[0].transpose(0, 1) for part in (q, k, v))
    longest, window = (queries.longest, keys.longest), (-1, 0 if causal else -1)
    out = attend_each(q, k, v, queries.starts, keys.starts, *longest, window_size=window)
    return out.transpose(0, 1)[None]


def test_a_tile_visits_the_tokens_of_its_sentences_and_no_others() -> None:
    """By hand: sentences of 3, 1 and 4 queries, which see 2, 5 and 1 keys; one tile is empty."""
    ranges = tile_ranges(where([3, 1, 4]).starts, where([2, 5, 1]).starts, 8, 2)
    assert [part.tolist() for part in ranges] == [
        [0, 2, 4, 6, 8], [2, 4, 6, 8, 8], [0, 0, 7, 7, 8], [2, 7, 8, 8, 8],
    ]  # fmt: skip
    assert sentence_of(where([3, 1, 4]).starts, 8).tolist() == [1, 1, 1, 2, 3, 3, 3, 3]


@pytest.mark.filterwarnings("ignore")  # of the interpreter
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("tile", [32, 64])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_tiled_by_tokens_equals_that_of_each_sentence(
    monkeypatch: pytest.MonkeyPatch, tile: int, causal: bool
) -> None:
    """Output and gradients, in Triton's interpreter, with keys and values of one product."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    torch.manual_seed(1)
    queries = where([5, 33, 1, 70, 20, 3])
    keys = queries if causal else where([9, 20, 4, 41, 64, 1])
    heads, width = 2, 16
    q = torch.randn(132, heads * width)
    both = torch.randn(int(keys.starts[-1]), 2 * heads * width)

    def results(dtype: torch.dtype, way: Way) -> list[Tensor]:
        given = [part.to(dtype).clone().requires_grad_() for part in (q, both)]
        k, v = given[1].chunk(2, dim=1)
        rows = [part.unflatten(1, (heads, width)).transpose(0, 1) for part in (given[0], k, v)]
        out = attentions.within(way, queries, keys, causal)(*(row[None] for row in rows))
        out.backward(torch.linspace(-1, 1, width, dtype=dtype).expand_as(out))
        return [out, *(part.grad for part in given if part.grad is not None)]

    ours = results(torch.float32, WAYS[f"A, {tile} queries"])
    exact = results(torch.float64, each_alone)
    errors = [(one - other).norm() / other.norm() for one, other in zip(ours, exact, strict=True)]
    assert max(errors) < 1e-6


@pytest.mark.parametrize("name", [EFFICIENT, "A, 32 queries"])
@pytest.mark.parametrize("kind", ["decoder", "cross"])
def test_a_way_is_differentiated_on_a_gpu_as_its_operator_declares(name: str, kind: str) -> None:
    """On tensors without data, in whose shapes a mistake in calling the operators would show."""
    setting = Setting("cpu", tiny=True)
    heads, queries, keys = attentions.inputs(setting, kind, 5)
    queries, keys = (each._replace(starts=each.starts.to("meta")) for each in (queries, keys))
    attend = attentions.within(WAYS[name], queries, keys, causal=kind == "decoder")
    found = attentions.results([part.to("meta") for part in heads], attend)
    assert [part.shape for part in found] == [part.shape for part in (heads[0], *heads)]


def test_a_way_is_checked_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of a GPU with ways that a CPU can compute, of which the second is never causal."""

    def never_causal(*given: Any) -> Tensor:
        q, k, v, queries, keys, _ = given
        return each_alone(q, k, v, queries, keys, causal=False)

    monkeypatch.setattr(attentions, "require", lambda *_: None)
    monkeypatch.setattr(attentions, "WAYS", {TODAY: each_alone, "wrong": never_causal})
    monkeypatch.setattr(attentions, "CHECKED", 20)
    monkeypatch.setattr(attention_ways, "WAYS", {TODAY: each_alone, "wrong": never_causal})
    attentions.run(Report(tmp_path / "items", "attentions", 1000), Setting("cpu", tiny=True))
    items = {item.name: item for item in read_items(tmp_path / "items")}
    failed = {name for name, item in items.items() if item.status != "ok"}
    assert failed == {"wrong: decoder, float64"}
    assert any(
        name.startswith(f"{TODAY}: cross, ") and item.unit == "ms" for name, item in items.items()
    )
    table, _ = table_of(items.values())
    assert table[TODAY].error is not None


# --- the rule ---------------------------------------------------------------------------------


def timings(
    *windows: float, error: float = 0.01, waits: bool | None = False, recompilations: int = 0
) -> Timings:
    """Of updates of 25,000 tokens, in thousands a second."""
    return Timings({25_000: list(windows)}, error, waits, recompilations)


NOW = timings(100, 102, 101)
REPLAYS = {
    f"{TODAY}{REPLAYED}": timings(130, 131, 132),
    f"{TODAY}{LAUNCHED}": timings(100, 101, 99),
}


def test_the_rule_by_hand() -> None:
    for others, attention, replays, said in [
        ({}, TODAY, False, ["CUDA graphs: not measured"]),
        ({EFFICIENT: timings(110, 111, 112)}, EFFICIENT, False, ["A': x1.10; better"]),
        ({EFFICIENT: timings(101.9, 111, 112)}, TODAY, False, ["not clearly faster"]),  # a window
        ({EFFICIENT: timings(102.5, 103, 104)}, TODAY, False, ["not clearly faster"]),  # 2 %
        ({EFFICIENT: timings(110, 111, 112, error=0.016)}, TODAY, False, ["1.6 times today's"]),
        ({EFFICIENT: timings(110, 111, 112, error=nan)}, TODAY, False, ["nan times today's"]),
        ({EFFICIENT: timings(110, 111, 112, waits=True)}, TODAY, False, ["it waits for the GPU"]),
        ({EFFICIENT: timings(110, 111, 112, waits=None)}, TODAY, False, ["nothing shows"]),
        ({EFFICIENT: timings(110, 111, 112, recompilations=2)}, TODAY, False, ["again, 2 times"]),
        # A by 9 % over A', by 10 %, and where A' is not adopted.
        (
            {EFFICIENT: timings(110, 110, 110), "A, 32 queries": timings(120, 120, 120)},
            EFFICIENT, False, ["A, 32 queries is x1.09 of A'"],
        ),
        (
            {EFFICIENT: timings(110, 110, 110), "A, 32 queries": timings(121, 121, 121)},
            "A, 32 queries", False, ["A, 32 queries: x1.20; better"],
        ),
        (
            {EFFICIENT: timings(110, 110, 110, error=1), "A, 64 queries": timings(112, 112, 112)},
            "A, 64 queries", False, ["A, 64 queries: x1.11; better"],
        ),
        (REPLAYS, TODAY, True, ["CUDA graphs: x1.31, clearly faster", "with CUDA graphs"]),
        ({**REPLAYS, f"{TODAY}{REPLAYED}": timings(101, 101, 102)}, TODAY, False, ["not clearly"]),
        # Of another way than that which is adopted, no replay was timed.
        ({**REPLAYS, EFFICIENT: timings(110, 111, 112)}, EFFICIENT, False, ["not measured"]),
        ({AGAIN: timings(110, 111, 112)}, TODAY, False, ["too noisy, nothing is decided"]),
        ({AGAIN: timings(103, 103, 101)}, TODAY, False, ["adopt: attention today"]),
    ]:  # fmt: skip
        decision = decide({TODAY: NOW, **others})
        assert (decision.attention, decision.replays) == (attention, replays)
        assert says("\n".join(decision.lines), *said)


def test_only_two_sizes_decide_and_slow_products_are_named() -> None:
    sizes = {8_192: [100.0] * 3, 50_000: [100.0] * 3}
    faster = Timings({8_192: [200.0] * 3, 50_000: [102.0] * 3}, 0.01, False)
    decision = decide({TODAY: Timings(sizes, 0.01, False), EFFICIENT: faster}, products=539)
    assert decision.attention == TODAY
    assert says("\n".join(decision.lines), "x1.02", "539 of 540 TFLOP/s", "max-autotune")
    assert "TFLOP" not in "".join(decide({TODAY: NOW}, products=541).lines)
    assert says(decide({}).lines[0], "not measured", "nothing is decided")


def test_the_table_is_read_from_what_the_sections_wrote() -> None:
    items = [
        Item("attentions", "A': gradient error", "ok", 0.02),
        Item("attentions", "today: gradient error", "failed", note="relative error 1"),
        Item("attentions", "A': cross, 25,000 queries", "ok", 3.0, "ms"),
        Item("updates", "A': 25,000 tokens", "ok", [1.0, 2.0]),
        Item("updates", "A': waits for nothing", "ok"),
        Item("updates", "today: waits for nothing", "failed"),
        Item("updates", "today, replayed: 25,000 tokens", "ok", [3.0]),
        Item("updates", "A': recompilations", "ok", 1),
        Item("products", "products of an update, 25,000 tokens", "ok", 500.0),
        Item("products", "products of an update, 50,000 tokens", "ok", 520.0),
    ]
    table, products = table_of(items)
    assert products == 520.0
    assert table == {
        "A'": Timings({25_000: [1.0, 2.0]}, 0.02, False, 1),
        "today": Timings(waits=True),
        "today, replayed": Timings({25_000: [3.0]}),
    }


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_rehearsal_on_a_cpu(tmp_path: Path) -> None:
    """Every section runs to its end; what needs a GPU is skipped with its reason."""
    output = tmp_path / "items.jsonl"
    ended = run(bare_environment(tmp_path), "--levers", "--device", "cpu", "--output", output)
    assert ended.returncode == 0, ended.stdout
    items = read_items(output)
    assert {item.section for item in items} == set(LEVERS)
    assert {item.status for item in items} == {"ok", "skipped"}
    assert all(item.note for item in items if item.status == "skipped")
    names = {item.name for item in items if item.status == "ok"}
    timed = {f"{name}: 512 tokens" for name in (TODAY, AGAIN)}
    assert timed | {"2 workers: decoding", "2 processes: a launch of operator"} <= names
    assert says(ended.stdout, "adopt: attention today, without CUDA graphs", "nothing failed")
