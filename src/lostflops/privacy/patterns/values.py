"""Where a value begins and ends, in whatever way it is quoted, behind a name or a flag.

A value is taken whole by its quoting. Text comes as it lies in a file: a quote may be plain, escaped as in a
JSON string, or escaped twice as in JSON that stands in a JSON string. A value without quotes ends where a
word does.
"""

from __future__ import annotations

import re

# Behind an escape like '\\n', '\\u00fc' or two backslashes, in which no letter of a word may be seen.
ESCAPE = rb"(?<=\\[nrtbf])(?<!\\\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4})|(?<=\\\\)(?<!\\\\\\)"
# A variable's whole name.
SECRET_NAME = (
    rb"\w{0,60}(?i:token(?![a-z])|(?<![a-z])key(?![a-z])|secret"
    rb"|passw(?:or)?d|passphrase|credentials?)\w{0,20}"
)
LINE = rb"(?:\\+[rn]|[\r\n])"
LINE_BEGINS = rb"(?:^|(?<=\n)|(?<=\\[nr])|(?<=\"))[ \t]{0,40}"

# Groups are named by what holds the value.
QUOTED = (
    rb"[$bBrR]?(?:(?P<three>\\{0,3}[\"'])(?P=three)(?P=three)(?P<q4>[^\n]{1,4000}?)(?=(?P=three)(?P=three))"
    # In JSON within JSON: seven backslashes are a quote that belongs to the value.
    rb"|\\\\\\\"(?P<q3>(?:\\{7}\"|[^\n\"]){0,4000}?)(?=(?<!\\)\\{3}\"|(?<!\\)\"|\n)"
    rb"|\\\"(?P<q1>(?:[^\"\\\n]|\\\\\\\"|\\\\|\\[^\"\\\n]){0,4000})(?=\\\"|\"|\n)"  # in a JSON string
    rb"|\"(?P<q0>(?:[^\"\\\n]|\\.){0,4000})(?=\")"
    # A shell joins what touches.
    rb"|\\?'(?P<q2>(?:[^'\"\\\n]|\\\\'|(?<!')''(?=[^'\"\s,;)\]}])|\\.){0,4000})(?=\\?'))"
)
# A word: an opening bracket or blank that was escaped may stand before it, and punctuation ends it only where
# something else begins behind it.
_BEFORE = rb"(?:(?!\\+u003cremoved)(?:\\[bfnrt/\\]|\\u[0-9a-fA-F]{4}|\\(?![bfnrtu/\\\"']))){0,4}+"
_WORD = (
    rb"(?!=\d)(?P<pw>(?:[^\s\"'\\<>,;&)}\]]|[,;&)}\]](?![\s\"'\\,;&)}\]]|$|[\w.-]+\s?[=:])"
    rb"|\\\\(?![\"nrt])|\\u[0-9a-fA-F]{4}){%d,})"
)
NO_NUMBER = rb"(?!\d+(?![\w.+/=-]))"
NEW = rb"(?!<removed>|%3Cremoved%3E|\\+u003cremoved)"
# Behind a name without quotes: the quote that ends the JSON string that it stands in, and no value.
_NO_END = rb"(?(plain)(?!\\{0,3}\"(?:[,:}\]\s]|$)))"
_IS = rb"[ \t]{0,9}(?::?=>?|:(?![:=])|%3[dD])[ \t]{0,9}"


def assignment(names: bytes, *, least: int = 1, word: bytes = b"", begins: bytes = b"") -> re.Pattern[bytes]:
    """Finds what is given to one of these names: quoted, or as a word of at least so many characters.

    `begins` is true wherever one of many names may begin, and else soon false.
    """
    quote = rb"\\{0,3}[\"']"
    return re.compile(
        begins + rb"(?P<before>(?:" + names + rb")(?:"
        # "name": "value" and {"name": "x", "value": "y"}: what is not quoted there is a number.
        + quote + rb"(?:\]?" + _IS + rb"|\s{0,9},(?:\s|\\{1,3}[nrt]){0,9}" + quote + rb"value" + quote + _IS
        + rb")"
        + rb"(?=[bBrR]?" + quote + rb")"
        + rb"|(?P<plain>" + _IS + _BEFORE + rb")))"
        + NEW + _NO_END
        + rb"(?:" + QUOTED + rb"|(?(plain)" + word + _WORD % least + rb"|(?!)))"
    )  # fmt: skip


def flagged(
    names: bytes, *, least: int = 1, word: bytes = b"", like: bytes = b"", behind: bytes = b""
) -> re.Pattern[bytes]:
    """Finds the value behind a flag: `--flag value`, `--flag=value`, and `"--flag", "value"`.

    `like` is what must follow, quoted or not, and `behind` what must be before.
    """
    quote = rb"\\{0,3}[\"']"
    return re.compile(
        (b"" if behind else rb"(?=-)")
        + rb"(?P<before>" + behind + rb"(?:" + ESCAPE + rb"|(?<![\w\\-]))--?(?:" + names + rb")(?:"
        + quote + rb"\s{0,9},(?:\s|\\{1,3}[nrt]){0,9}(?=" + quote + rb")"
        + rb"|(?P<plain>=|[ \t]{1,9})(?!-)))"
        + NEW + _NO_END + like
        + rb"(?:" + QUOTED + rb"|(?(plain)" + word + _WORD % least + rb"|(?!)))"
    )  # fmt: skip


def begins_as(pairs: str) -> bytes:
    """True in front of two letters of these, small or not: much faster than an alternative of many words."""
    seconds = dict[str, str]()
    for first, second in pairs.split():
        seconds[first] = seconds.get(first, "") + second
    return rb"(?=" + b"|".join(_either(one) + _either(more) for one, more in seconds.items()) + rb")"


def _either(letters: str) -> bytes:
    """One of these letters, small or not."""
    return f"[{''.join(re.escape(letter) for letter in sorted({*letters, *letters.upper()}))}]".encode(
        "latin1"
    )
