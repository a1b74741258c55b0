"""The room's one error."""


class TimingError(ValueError):
    """A trace, a scrape or a table that cannot be used: what, got, expected, where, what to do."""
