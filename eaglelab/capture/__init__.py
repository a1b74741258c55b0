"""States captured from a live engine: written as a dump that `open_dump` reads, and held against the dump that was trained on."""
