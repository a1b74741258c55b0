"""What keeps a page from being self-contained and accessible, as far as its tags tell."""

from html.parser import HTMLParser

EVIL = "<script>alert(1)</script>"


class Checker(HTMLParser):
    """What keeps a page from being self-contained and accessible."""

    def __init__(self):
        super().__init__()
        self.problems, self.h1, self.scripts = [], 0, 0

    def handle_starttag(self, tag, attrs):
        given = {k: v or "" for k, v in attrs}
        self.h1 += tag == "h1"
        if tag == "img" and not given.get("alt", "").strip():
            self.problems.append("an image has no alt text")
        self.scripts += tag == "script"
        if tag in ("iframe", "object", "embed", "link"):
            self.problems.append(f"a <{tag}> tag is on the page")
        for key in ("src", "srcset", "poster", "data"):
            if key in given and not given[key].startswith("data:"):
                self.problems.append(f"<{tag}> loads {given[key]!r}, which is not in the page")


def lint(html, scripts=0):
    """What is wrong with a page; `scripts` of its own are expected on it."""
    checker = Checker()
    checker.feed(html)
    checker.close()
    problems = checker.problems + ([f"{checker.h1} h1 headings"] if checker.h1 != 1 else [])
    return problems + ([f"{checker.scripts} <script> tags are on the page"] if checker.scripts != scripts else [])
