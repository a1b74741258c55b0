"""Shell text to simple commands, so far as launch scripts need it: quotes, comments, line ends, operators, redirections, variables.

Nothing is run. A variable that the script assigns, or that has a default (`${TP:-8}`), is put in; what only the shell that runs it can
expand stays as it was written (`Raw`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
OPERATOR = re.compile(r"(?P<redirect>(?:\d+(?=[<>])|&(?=>))?(?:>>|>&|<&|>\||<<<|<<-?|<>|[<>]))|&&|\|\|?&?|;;?|[&()\n]")
VARIABLE = re.compile(r"\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*)(?::?[-=](?P<default>[^{}$`\"'\\]*))?\})")
OTHER = re.compile(r"\$\{[^}\n]*\}|\$[@*#?$!\d-]|`[^`]*`")
"""Expansions that are left to the shell; so is `$(…)`."""
RESERVED = ("then", "do", "else", "elif", "if", "while", "until", "!", "time", "{", "}", "exec", "command", "builtin")
"""Words in front of a command that are none of its own."""
LONGEST = 1 << 16
"""Characters of a variable's value; a longer one is left to the shell."""
SETTERS = ("export", "readonly", "declare", "typeset", "local")


class Raw(str):
    """A word with a part that the shell expands: the text to print, quoted where it must be."""


@dataclass
class Command:
    """A simple command, its variables put in."""

    words: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Redirections, and words in front that belong to the shell, as written."""
    end: str = ""
    """The operator behind it; "" for the end of a line."""
    exported: dict[str, str] = field(default_factory=dict)
    """What `export` had set before it."""


def quoted(words: Iterable[str]) -> str:
    """Words as a shell reads them back. NAME=value is an assignment only where the name stands outside the quotes."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if isinstance(word, Raw):
        return word
    name, _, value = word.partition("=")
    return f"{name}={shlex.quote(value)}" if ASSIGNMENT.fullmatch(word) else shlex.quote(word)


class Script:
    """`commands` of a text, `taken` defaults and `open` variables by name. Raises ValueError for a quote without its partner."""

    def __init__(self, text: str) -> None:
        self.text = _lines_joined(text)
        self.commands: list[Command] = []
        self.taken: dict[str, str] = {}
        self.open: list[str] = []
        self._variables: dict[str, str] = {}
        self._exported: dict[str, str] = {}
        self._at = 0
        self._read()

    def _read(self) -> None:
        command, redirection = Command(), ""
        while self._at < len(self.text):
            character = self.text[self._at]
            operator = OPERATOR.match(self.text, self._at)
            if character in " \t\r":
                self._at += 1
            elif character == "#":
                end = self.text.find("\n", self._at)
                self._at = end if end >= 0 else len(self.text)
            elif operator and operator["redirect"]:
                redirection, self._at = operator[0], operator.end()
            elif operator:
                self._at = operator.end()
                command = self._ended(command, operator[0])
            else:
                words = self._word()
                if redirection:
                    command.left_out.append(redirection + " ".join(words))
                    redirection = ""
                else:
                    command.words += words
        self._ended(command, "\n")

    def _ended(self, command: Command, operator: str) -> Command:
        while command.words and command.words[0] in RESERVED:
            command.left_out.insert(0, command.words.pop(0))
        command.end = "" if operator == "\n" else operator
        command.exported = dict(self._exported)
        setter = command.words[0] if command.words and command.words[0] in SETTERS else None
        if command.words and all(ASSIGNMENT.fullmatch(w) or (setter and not w.startswith("$")) for w in command.words):
            for word in command.words[bool(setter) :]:
                name, equals, value = word.partition("=")
                if equals and len(value) <= LONGEST:
                    self._variables[name] = Raw(value) if isinstance(word, Raw) else value
                if setter == "export" and name in self._variables:
                    self._exported[name] = self._variables[name]
        elif command.words:
            self.commands.append(command)
        return Command()

    def _word(self) -> list[str]:
        """The word at this place; an unquoted variable whose value has spaces makes several."""
        words: list[list[tuple[str, bool]]] = [[]]  # of (text, to be expanded by the shell)
        quote, text = "", self.text
        while self._at < len(text):
            c = text[self._at]
            if not quote and (c in " \t\r<>|&;()\n"):
                break
            if quote == "'" or (not quote and c == "'"):
                end = text.find("'", self._at + 1)
                if end < 0:
                    raise ValueError("No closing quotation")
                words[-1].append((text[self._at + 1 : end], False))
                self._at = end + 1
            elif c == '"':
                quote = "" if quote else '"'
                words[-1].append(("", False))
                self._at += 1
            elif c == "\\" and self._at + 1 < len(text):
                kept = "\\" if quote and text[self._at + 1] not in '"\\$`' else ""
                words[-1].append((kept + text[self._at + 1], False))
                self._at += 2
            elif c in "$`":
                self._expand(words, quote)
            elif c == "~" and not quote and (not words[-1] or words[-1][-1][0].endswith("=")):
                words[-1].append((c, True))
                self._at += 1
            else:
                words[-1].append((c, False))
                self._at += 1
        if quote:
            raise ValueError("No closing quotation")
        return [_joined(parts) for parts in words if parts]

    def _expand(self, words: list[list[tuple[str, bool]]], quote: str) -> None:
        found = VARIABLE.match(self.text, self._at)
        name = found and (found["plain"] or found["braced"])
        value = self._variables.get(name) if found else None
        if found and value is None and found["default"] is not None:
            value = self.taken[name] = found["default"]
        if value is None:
            end = found.end() if found else self._end_of_expansion()
            text = self.text[self._at : end]
            self._at = end
            if text == "$":
                words[-1].append((text, False))
                return
            self.open += [text] if text not in self.open else []
            words[-1].append((f"{quote}{text}{quote}", True))
            return
        self._at = found.end()
        if isinstance(value, Raw):
            words[-1].append((value, True))
        elif quote or not re.search(r"\s", value):
            words[-1].append((value, False))
        else:
            first, *others = value.split() or [""]
            words[-1].append((first, False))
            words += [[(other, False)] for other in others]

    def _end_of_expansion(self) -> int:
        text, start = self.text, self._at
        if text.startswith("$(", start):
            depth = 0
            for place in range(start + 1, len(text)):
                depth += {"(": 1, ")": -1}.get(text[place], 0)
                if depth == 0:
                    return place + 1
            raise ValueError("No closing parenthesis")
        other = OTHER.match(text, start)
        return other.end() if other else start + 1


def _lines_joined(text: str) -> str:
    """Without lines that are comments; lines behind a backslash go on, and so do those that start with a dash: no command starts so."""
    pieces: list[str] = []
    goes_on = False
    for row in text.replace("\r\n", "\n").split("\n"):
        if row.lstrip().startswith("#"):
            continue
        if pieces and not goes_on and row.lstrip().startswith("-"):
            pieces[-1] = re.sub(r"(^|\s)#.*$", "", pieces[-1])
            goes_on = True
        pieces.append((" " if goes_on else "\n") + (row[:-1] if row.endswith("\\") else row))
        goes_on = row.endswith("\\")
    return "".join(pieces)


def _joined(parts: list[tuple[str, bool]]) -> str:
    if not any(open_ for _, open_ in parts):
        return "".join(text for text, _ in parts)
    pieces: list[str] = []
    literal = ""
    for text, open_ in [*parts, ("", True)]:
        if not open_:
            literal += text
            continue
        name, equals, _ = literal.partition("=")
        keep = f"{name}=" if not pieces and equals and re.fullmatch(r"[\w-]+", name) else ""
        pieces.append(keep + (shlex.quote(literal[len(keep) :]) if literal[len(keep) :] else ""))
        pieces.append(text)
        literal = ""
    return Raw("".join(pieces))
