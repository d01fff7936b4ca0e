"""What a file is packed with that we do not unpack, told from its first bytes."""

from __future__ import annotations

PACKINGS = {
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"7z\xbc\xaf": "7-Zip",
    b"\x04\x22\x4d\x18": "LZ4",
    b"\x1f\x8b": "gzip twice",  # once is unpacked before anybody asks
}
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
UNPACK = "unpack it first."


def packing(head: bytes) -> tuple[str, str] | None:
    """What is wrong with a text that begins like this, and what to do; None where it is not packed."""
    for magic, name in PACKINGS.items():
        if head.startswith(magic):
            return f"it is packed with {name}.", UNPACK
    if head.startswith(UTF_16):
        return "its text is UTF-16.", "write it again as UTF-8."
    return None
