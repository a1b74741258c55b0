"""A report with `--redact`: its settings, and its cases under names that say nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from eaglelab.redact.redaction import redacting
from eaglelab.reports.case_run import Settings
from eaglelab.reports.cases import Asked
from eaglelab.reports.select import ReportError


@contextmanager
def redacted(redact: bool, resume: bool, asked: Sequence[Asked], settings: Settings) -> Iterator[tuple[Sequence[Asked], Settings]]:
    """Cases and settings as they are where `redact` is False. Raises ReportError with `resume`."""
    if not redact:
        yield asked, settings
        return
    if resume:
        raise ReportError("--redact and --resume: a redacted run keeps no hashes to be recognised by, and is made anew")
    parameters = [source.defaults | settings.fitted[source.name] for source in settings.sources]
    with redacting([a.case for a in asked if a.case], parameters) as redaction:
        redaction.redactor.keep(*(source.name for source in settings.sources))
        environment = {**settings.environment, **redaction.environment}
        named = [
            replace(a, name=redaction.folder(n), error=a.error and redaction.redactor.text(a.error)) for n, a in enumerate(asked, start=1)
        ]
        yield named, replace(settings, environment=environment, redaction=redaction)
