"""An engine's own code as the authority on what it captures: read from a wheel, an sdist or a folder, never imported."""
