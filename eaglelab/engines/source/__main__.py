"""`python -m eaglelab.engines.source WHEEL…`: rows for `conventions.toml`, read out of SGLang's published wheels."""

import sys

from eaglelab.engines.source.rows import as_toml, rows_of, words_of

if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: python -m eaglelab.engines.source WHEEL…   (SGLang's wheels, as `pip download --no-deps` fetches them)")
    print(as_toml(rows_of(dict(words_of("sglang", wheel) for wheel in sys.argv[1:]), "sglang")))
