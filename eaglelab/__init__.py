"""eaglelab: why an EAGLE-3 drafter does not speed up serving, with numbers, and what to change.

    import eaglelab
    case = eaglelab.open_case("data/example/case.toml")
    dump = eaglelab.open_dump("my_dump/")

torch and pandas are imported by the modules that need them, not here: config checks must start in a blink.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "open_case", "open_dump"]

_LAZY = {"open_case": "eaglelab.case", "open_dump": "eaglelab.dumps"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'eaglelab' has no attribute {name!r}")
