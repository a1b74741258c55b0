"""Engines and frameworks: how they turn layer ids into boundaries, what they read of a drafter's config, what a launch line gives."""
