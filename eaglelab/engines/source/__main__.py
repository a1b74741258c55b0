"""`python -m eaglelab.engines.source sglang WHEEL…`: rows and `no_capture` for `conventions.toml`, read out of an engine's published wheels."""

import sys
import textwrap

from eaglelab.engines.source.rows import TARGETS, as_toml, rows_of, without_setter, words_of

if __name__ == "__main__":
    name, *wheels = sys.argv[1:] or [""]
    if name not in TARGETS or not wheels:
        sys.exit(f"usage: python -m eaglelab.engines.source {{{','.join(TARGETS)}}} WHEEL…   (or installed folders, one a version)")
    print(as_toml(rows_of(dict(words_of(name, wheel) for wheel in wheels), name)))
    print("no_capture:", *textwrap.wrap(" ".join(without_setter(name, wheels)), 138), sep="\n")
