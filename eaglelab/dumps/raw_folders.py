"""The raw layout of an engine patch: one folder a sample with one torch file a tensor, `aux_0.pt`, `aux_1.pt`, …, `final.pt` and
the token ids. File names can be set; without a mask file the mask is unknown.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eaglelab.dumps.containers import DumpError, is_torch_name, load_torch
from eaglelab.dumps.implied import Implied
from eaglelab.dumps.listing import Listing, natural
from eaglelab.dumps.sample import Probe, Sample, as_mask, as_slot, as_token_ids

AUX = re.compile(r"aux_\d+\.(pt|pth|ckpt)")
LAST = "final.pt"
TOKEN_IDS = ("input_ids.pt", "token_ids.pt", "tokens.pt")
FILE_KEYS = ("slots", "last", "token_ids", "loss_mask")


@dataclass(frozen=True)
class RawFolders:
    slots: tuple[str, ...] | None = None
    """The aux slots' files in order; None = every `aux_<n>.pt` of the folder, by number."""
    last: str | None = LAST
    """None: the dump holds no last state."""
    token_ids: tuple[str, ...] = TOKEN_IDS
    """The first of these that the folder has."""
    loss_mask: str = "loss_mask.pt"
    allow_pickle: bool = False

    name = "raw_folders"

    @property
    def last_state_kept(self) -> bool:
        return self.last is not None

    @classmethod
    def named(cls, files: dict[str, Any] | None, allow_pickle: bool = False) -> RawFolders:
        """With the case's own file names: `{"slots": [...], "last": ..., "token_ids": ..., "loss_mask": ...}`."""
        files = dict(files or {})
        for key, value in files.items():
            if key not in FILE_KEYS:
                near = difflib.get_close_matches(key, FILE_KEYS, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise DumpError(f"[dump] files: unknown key {key!r}, expected some of {', '.join(FILE_KEYS)}{hint}", "settings")
            _check_names(key, value)
        if "slots" in files:
            files["slots"] = tuple(files["slots"])
        if "token_ids" in files:
            files["token_ids"] = (files["token_ids"],)
        return cls(**files, allow_pickle=allow_pickle)

    @property
    def looks_for(self) -> str:
        slots = ", ".join(self.slots) if self.slots else "aux_0.pt, aux_1.pt, …"
        return f"one folder a sample with {slots}, {self.last or LAST} and {' or '.join(self.token_ids)}"

    def keys(self, listing: Listing) -> tuple[list[str], list[str]]:
        """(sample folders, stray torch files), by name alone: a sample is a folder with the last state or with an aux slot. Without a
        last state it is only a dump where no folder has one: one that lacks it among others is a sample that lost it."""
        if self.last is None and any(name.rpartition("/")[2] == LAST for name in listing.files):
            return [], []
        folders: dict[str, set[str]] = defaultdict(set)
        for name in listing.files:
            folder, _, file = name.rpartition("/")
            folders[folder].add(file)
        keys = [folder for folder, files in folders.items() if self._is_sample(files)]
        taken = set(keys)
        stray = [name for name in listing.files if is_torch_name(name) and name.rpartition("/")[0] not in taken]
        return sorted((key or "." for key in keys), key=natural), stray

    def paths(self, root: Path, key: str) -> list[Path]:
        names = [*self._state_files(root / key), *self.token_ids, self.loss_mask]
        return [root / key / name for name in names if (root / key / name).is_file()]

    def load(self, root: Path, key: str) -> Sample:
        """The sample as its files hold it; lengths and widths are not compared yet. Raises DumpError."""
        folder, notes = root / key, []
        files = self._state_files(folder)
        ids_files = [name for name in self.token_ids if (folder / name).is_file()]
        missing = [name for name in files if not (folder / name).is_file()]
        if not set(files) - {self.last}:
            missing.insert(0, "aux_0.pt")
        if not ids_files:
            missing.append(" or ".join(self.token_ids))
        if missing:
            raise DumpError(
                f"{folder}: has no {', no '.join(missing)}. Dump it again, or name the files: section `[dump.files]` in case.toml.",
                "incomplete",
            )
        ids, *others = (as_token_ids(self._read(folder / name), name, str(folder), notes) for name in ids_files)
        if not all(torch.equal(ids, other) for other in others):
            text = f"{folder}: {' and '.join(ids_files)} hold different tokens. Leave the one that the states belong to."
            raise DumpError(text, "tokens differ")
        return Sample(
            key=key,
            token_ids=ids,
            slots=tuple(as_slot(self._read(folder / name), name, str(folder), notes) for name in files),
            loss_mask=as_mask(self._read(folder / self.loss_mask), self.loss_mask, str(folder), notes),
            slot_names=tuple(name.split(".", 1)[0] for name in files),
            notes=tuple(notes),
        )

    def implied(self, listing: Listing, probes: Sequence[Probe] = ()) -> tuple[Implied | None, list[str]]:
        if self.last is not None:
            return None, []
        return None, [f"no folder has a {LAST}: all slots are taken for aux slots, and the dump for one without a last state"]

    def _is_sample(self, files: set[str]) -> bool:
        if self.last in files:
            return True
        return any(name in files for name in self.slots) if self.slots else any(AUX.fullmatch(name) for name in files)

    def _state_files(self, folder: Path) -> tuple[str, ...]:
        """The aux slots' files in order, then the last state's. Raises DumpError where two are of one number."""
        last = () if self.last is None else (self.last,)
        if self.slots is not None:
            return (*self.slots, *last)
        found = {}
        for name in sorted((p.name for p in folder.iterdir() if AUX.fullmatch(p.name)) if folder.is_dir() else (), key=natural):
            other = found.setdefault(int(re.findall(r"\d+", name)[0]), name)
            if other != name:
                raise DumpError(f"{folder}: {other} and {name} are one slot in two files. Leave the right one.", "slot twice")
        return (*found.values(), *last)

    def _read(self, path: Path) -> Any:
        """None where the file is absent, which only the mask's may be."""
        return load_torch(path, self.allow_pickle) if path.is_file() else None


def _check_names(key: str, value: Any) -> None:
    names = value if key == "slots" else [value]
    good = isinstance(names, (list, tuple)) and names and all(isinstance(name, str) and name for name in names)
    if not good:
        expected = "a list of file names" if key == "slots" else "a file name"
        raise DumpError(f"[dump] files: {key} is {value!r}, expected {expected}", "settings")
    for name in names:
        if "/" in name or "\\" in name or name in (".", ".."):
            raise DumpError(f"[dump] files: {key} names {name!r}, expected a file inside the sample's folder", "settings")
