"""What holds the documents to the truth: it finds commands, and a wrong quotation."""

import pytest
from docs_pages import Command, Page, differs

OUTPUT = "first 1.80\n\nsecond 7 of 10  (a.b)\nthird\n"

GOOD = [
    (("first 1.80", "", "second 7 of 10  (a.b)", "third"), False),
    (("...", "third"), False),
    (("first ...", "...", "third"), False),
    (("... 7 of ...  (a.b)",), False),
    (("second 7 of 10", "third"), True),
]
WRONG = [
    (("first 1.81",), False),
    (("first 1.8",), False),  # a part of the line is not the line
    (("first 1.80", "third"), False),  # a line between is left out without a word
    (("third", "...", "first 1.80"), False),  # another order
    (("second 7 of 10",), False),  # the id may be left out only where it is said
    (("...", "fourth"), False),
    (("first 1.80", "fourth"), True),
]


@pytest.mark.parametrize(("quoted", "gaps"), GOOD)
def test_what_was_printed_may_be_quoted(quoted, gaps):
    assert differs(quoted, OUTPUT, gaps) is None


@pytest.mark.parametrize(("quoted", "gaps"), WRONG)
def test_what_was_not_printed_is_found(quoted, gaps):
    assert "quoted: " in differs(quoted, OUTPUT, gaps)


TEXT = """# A page

Prose with `eaglelab check CASE --cheap`, [a link](other.md#part-2), 1.25 and ![what is seen](images/x.png).

```toml my_case/case.toml
[dump]
```

```console
$ eaglelab check my_case \\
    --cheap
[ok] a line
...
$ eaglelab cost t.csv        # two lines left out
total 3
```

    make report     # a comment

## Part (2): `x`

```text
nothing to run
```
"""


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(TEXT, encoding="utf-8")
    return Page.of(path)


def test_commands_with_what_is_quoted_and_the_files_before_them(page):
    first, second, third = page.commands()
    assert first.bare.split() == ["eaglelab", "check", "my_case", "--cheap"]
    assert first.quoted == ("[ok] a line", "...")
    assert first.files == (("my_case/case.toml", "[dump]\n"),)
    assert (second.bare, second.quoted, second.gaps, second.files) == ("eaglelab cost t.csv", ("total 3",), True, ())
    assert (third.bare, third.quoted) == ("make report", ())
    assert isinstance(first, Command)


def test_prose_links_anchors_and_pictures(page):
    assert "1.25" in page.text
    assert "--cheap" not in page.text
    assert "a line" not in page.text
    assert page.inline == ["eaglelab check CASE --cheap", "x"]
    assert page.links == [("a link", "other.md#part-2"), ("what is seen", "images/x.png")]
    assert page.pictures == [("what is seen", "images/x.png")]
    assert page.anchors == {"a-page", "part-2-x"}
