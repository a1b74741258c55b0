"""What a file is that is no chrome trace, by its first bytes."""

from __future__ import annotations

EXPECTED = (
    "Expected a chrome trace of PyTorch's profiler: JSON with `traceEvents`, plain or gzip. To record one: SGLang, POST /start_profile to the "
    'server; vLLM, --profiler-config \'{"profiler": "torch", "torch_profiler_dir": "/a/folder"}\' (before 0.13: VLLM_TORCH_PROFILER_DIR) and '
    "POST /start_profile; torch, profile().export_chrome_trace(path)."
)

MAGIC = (
    (b"SQLite format 3\0", "an SQLite database (nsys and rocprof export such)"),
    (b"PK\x03\x04", "a zip archive: unpack it, and give the JSON in it"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd, which is not read here: `zstd -d FILE` unpacks it"),
    (b"\xfd7zXZ\0", "packed with xz, which is not read here: `xz -d FILE` unpacks it"),
    (b"BZh", "packed with bzip2, which is not read here: `bzip2 -d FILE` unpacks it"),
    (b"\x04\x22\x4d\x18", "packed with lz4, which is not read here: `lz4 -d FILE` unpacks it"),
    (b"\x1f\x8b", "a second gzip: unpack it once"),
    (b"\xff\xfe", "UTF-16 text: turn it into UTF-8 with iconv"),
    (b"\xfe\xff", "UTF-16 text: turn it into UTF-8 with iconv"),
    (b"\x80", "a pickle (torch's memory snapshots are such)"),
    (b"\x7fELF", "a program or library"),
    (b"version https://git-lfs", "a Git LFS pointer, not the data: run `git lfs pull`"),
)
BOM = b"\xef\xbb\xbf"


def looks_like(head: bytes, name: str = "") -> str | None:
    """In a few words, or None where it may be JSON. `head`: the first bytes, unpacked."""
    if not head:
        return "empty (0 bytes)"
    for magic, what in MAGIC:
        if head.startswith(magic):
            return what
    if head[257:262] == b"ustar":
        return "a tar archive: unpack it, and give the JSON in it"
    if ".tfevents." in name or b"brain.Event:" in head[:64]:  # a record's length and check sum come first
        return "a TensorBoard event file"
    if name.endswith(".nsys-rep"):
        return "a report of Nsight Systems"
    text = head.removeprefix(BOM).lstrip()
    if not text:
        return "nothing but white space"
    if text[:1] in (b"{", b"["):
        return None
    if text[:15].lower().startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "a web page or XML"
    if b"\0" in head[:512] or (head[:1] == b"\n" and b"\x08" in head[:64]):
        return f"no JSON but binary data that begins with {head[:12]!r} (perfetto's own format is such)"
    return f"no JSON: it begins with {text[:40].decode('utf-8', 'replace')!r}"
