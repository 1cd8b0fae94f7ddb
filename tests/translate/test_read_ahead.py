"""Windows are read and encoded one ahead of those that are translated."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from mt.errors import DataError
from mt.model.checkpoint import LoadedModel
from mt.runtime.devices import Device
from mt.search import engine as engine_module
from mt.search.engine import TorchEngine
from mt.search.inference import Inference
from mt.translate.streaming import read_ahead
from mt.translate.translator import Translator


@pytest.fixture
def engine(loaded: LoadedModel) -> TorchEngine:
    return TorchEngine(
        Inference(loaded.model, Device(torch.device("cpu"), "fp32")), loaded.config.decode
    )


def test_items_come_in_order_and_errors_in_their_turn() -> None:
    makers: set[int | None] = set()

    def items() -> Iterator[int]:
        for number in range(20):
            makers.add(threading.current_thread().ident)
            yield number
        raise ZeroDivisionError("after all of them")

    found = read_ahead(items())
    assert [next(found) for _ in range(20)] == list(range(20))
    with pytest.raises(ZeroDivisionError, match="after all of them"):
        next(found)
    assert threading.get_ident() not in makers
    assert list(read_ahead(iter([]))) == []


def test_lines_are_taken_at_most_a_window_ahead(
    engine: TorchEngine, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next window is encoded while one is translated; an abandoned thread ends by itself."""
    monkeypatch.setattr(engine_module, "WINDOW", 3)
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in ["eins", "zwei", "drei", "vier", "fünf"] * 3:
            taken.append(line)
            yield line

    before = threading.active_count()
    found = Translator(engine, loaded.tokenizer, max_source=32, reads_ahead=True).translate(lines())
    next(found)
    for _ in range(1000):
        if threading.active_count() == before:
            break
        time.sleep(0.01)
    assert len(taken) == 6
    assert threading.active_count() == before


def test_a_window_is_translated_before_the_next_lines_have_come(
    engine: TorchEngine, loaded: LoadedModel
) -> None:
    """So that a program that waits for the answer may send the next line after it."""
    answered = threading.Event()

    def windows() -> Iterator[list[str]]:
        yield ["eins"]
        assert answered.wait(30)
        yield ["zwei"]
        raise DataError("line 3 is wrong")

    found = Translator(engine, loaded.tokenizer, max_source=32, reads_ahead=True).translate_windows(
        windows()
    )
    assert len(next(found)) == 1
    answered.set()
    assert len(next(found)) == 1
    with pytest.raises(DataError, match="line 3 is wrong"):
        next(found)
