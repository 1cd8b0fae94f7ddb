"""`mt`: train, run and judge encoder-decoder Transformers for translation.

`mt.load`, `mt.train`, `mt.evaluate`, `mt.export`, `mt.Tokenizer` and `mt.Error` are the Python API;
see `mt.api`. Importing `mt` alone loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mt.api import Error as Error
    from mt.api import Sampling as Sampling
    from mt.api import Tokenizer as Tokenizer
    from mt.api import Translator as Translator
    from mt.api import evaluate as evaluate
    from mt.api import export as export
    from mt.api import load as load
    from mt.api import train as train

__version__: str
__all__ = ["Error", "Sampling", "Tokenizer", "Translator", "evaluate", "export", "load", "train"]


def __getattr__(name: str) -> Any:
    """Import the API, or look up the version, when it is first used."""
    if name == "__version__":
        from mt.package import VERSION

        return VERSION
    if name not in __all__:
        raise AttributeError(f"module 'mt' has no attribute {name!r}")
    from mt import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
