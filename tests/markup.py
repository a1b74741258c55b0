"""What a reader sees of HTML."""

import html
import re


def visible_text(markup: str) -> str:
    """The text between the tags, one space where a tag or several stand; folded parts included."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", markup)).split())
