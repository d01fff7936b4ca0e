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
# Of both byte orders. UTF-32 of one of them begins as UTF-16 does.
ENCODINGS = {
    (b"\xff\xfe\0\0", b"\0\0\xfe\xff"): "UTF-32",
    (b"\xff\xfe", b"\xfe\xff"): "UTF-16",
}
UNPACK = "unpack it first."
TAR, TAR_AT = b"ustar", 257  # where the header of an archive's first file says what it is
BEGINS = (b"{", b"[")
# A text of two or four bytes a character that no mark announces.
UNMARKED = (b"{\0", b"[\0", b"\0{", b"\0[", b"\0\0\0{", b"\0\0\0[")


def packing(head: bytes) -> tuple[str, str] | None:
    """What is wrong with a text that begins like this, and what to do; None where it is not packed."""
    if head[:1] not in BEGINS and head[TAR_AT:].startswith(TAR):
        return "it is packed with tar.", UNPACK
    for magic, name in PACKINGS.items():
        if head.startswith(magic):
            return f"it is packed with {name}.", UNPACK
    for marks, name in ENCODINGS.items():
        if head.startswith(marks):
            return f"its text is {name}.", "write it again as UTF-8."
    if head.startswith(UNMARKED):
        return "its text is UTF-16 or UTF-32.", "write it again as UTF-8."
    return None
