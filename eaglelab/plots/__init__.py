"""Figures: a DataFrame or array in, matplotlib Axes out. One file a subject; nothing here computes a statistic or calls `show`."""
