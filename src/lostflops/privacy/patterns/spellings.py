"""Secrets as commands, configuration files and people write them, where no name is assigned a value.

Each entry is what must stand in the text, in small letters, and what finds the value behind it. Where a
sentence could go on with any word, the value must look like no word: it holds a digit, or is long.
"""

from __future__ import annotations

import re

from lostflops.privacy.patterns.values import (
    ESCAPE,
    LINE_BEGINS,
    NEW,
    QUOTED,
    SECRET_NAME,
    begins_as,
    flagged,
)

_BEGIN = rb"(?:" + ESCAPE + rb"|(?<![\w.\\-]))"
_WORD = rb"(?:" + ESCAPE + rb"|(?<![A-Za-z0-9\\]))"
_TO = rb"(?=[\s\"'\\])(?:[^\n;|:}]|:(?![\s\"])){0,300}?"
_BLANK = rb"(?:[ \t]|\\{1,3}n|\n)"
_MIXED = rb"(?=[^\s\"'\\]{0,60}\d)(?=[^\s\"'\\]{0,60}[A-Za-z])"
_VALUE = rb"(?:" + QUOTED + rb"|(?P<pw>[^\s\"'\\,;|&()<>]{1,400}))"
_IS = rb"[ \t]{1,3}(?:is|ist|->|\xe2\x86\x92|\\u2192)[ \t]{1,3}"


def _given(commands: bytes, flags: bytes) -> re.Pattern[bytes]:
    """What a command takes behind one of these flags, apart."""
    return flagged(flags, behind=_BEGIN + rb"(?:" + commands + rb")" + _TO)


def _found(before: bytes, value: bytes = _VALUE) -> re.Pattern[bytes]:
    return re.compile(rb"(?P<before>" + before + rb")" + NEW + value)


_ASK = rb"passw(?:or)?d|passphrase|passcode|passwort|mot de passe|wachtwoord|senha|parola"
_KEYS = rb"(?:api|access|secret|private|auth)[ _-]?key|token|secret"
# No value, where a sentence goes on.
_GOES_ON = (
    rb"(?!(?:not?|in|an?|the|too|set|unset|required|missing|invalid|incorrect|wrong|empty|none|null|ok"
    rb"|valid|correct"
    rb"|expired|now|read|stored|given|needed|optional|used|being|sent|asked|only|also|for|of|to|by"
    rb"|from)(?![\w-]))"
)
_WHOLE = rb"(?P<pw>[^\s\"'\\]{4,400})"
# A name at the end of its line: of a shell that goes on, and of YAML.
_BELOW = (
    rb"(?i:passw(?:or)?d|passphrase|secret|token|api_?key|authorization)\w{0,20}"
    rb"(?:[:=][ \t]{0,9}(?:\\+[rn]|\\?[\r\n])|[ \t]{1,9}(?:\\\\+[rn]|\\[\r\n]))[ \t]{1,40}"
    rb"(?:(?i:basic|bearer|token)[ \t]{1,9})?"
)
BELOW_BEGINS = begins_as("pa se to ap au")
KEYS_BEGIN = begins_as("ap ac se pr au to")
LOGINS_BEGIN = begins_as("lo ke se to ne co wa xa")
_SQL = rb"sqlcmd|bcp|isql|tsql|osql"
_WORDS = rb"[^\s\"'\\=:]{1,200}(?: [^\s\"'\\=:-][^\s\"'\\=:]{0,200}){1,20}(?=$|[\"\n\\])"

ONE_VALUE: tuple[tuple[bytes, re.Pattern[bytes]], ...] = (
    # Commands.
    (
        b"sshpass",
        _found(_BEGIN + rb"sshpass" + _TO + rb"(?<=[\s\"'])-p", rb"(?P<pw>[^\s\"'\\]{2,200})"),
    ),
    (b"sshpass", _given(rb"sshpass", rb"p")),
    (
        b"-p",
        _found(
            _BEGIN + rb"(?:mysql\w*|mariadb[\w-]*|7z\w?)" + _TO + rb"(?<=[\s\"'])-p",
            rb"(?:" + QUOTED + rb"|(?!ass)(?P<pw>[^\s\"'\\]{2,200}))",
        ),
    ),
    (b"-u", _found(_BEGIN + rb"(?:mysql\w*|mariadb[\w-]*)" + _TO + rb"(?<=[\s\"'])-u",
    rb"(?P<pw>[\w.-]{2,200})(?![\w.:@-])")),
    (b"-u", _given(rb"mysql\w*|mariadb[\w-]*|mongo\w*|(?:docker|podman|nerdctl|helm"
    rb"|oras)(?=[^\n;|]{0,40}login)", rb"u")),
    (b"-p", _given(rb"mongo\w*|(?:docker|podman|nerdctl|helm|oras)(?=[^\n;|]{0,40}login)", rb"p")),
    (b"redis-cli", _given(rb"redis-cli", rb"a")),
    (b"ldap", _given(rb"ldap\w+", rb"w")),
    (b"zip", _given(rb"zip|unzip", rb"P")),
    (b"openssl", _given(rb"openssl", rb"k|K")),
    (b"-p", _given(_SQL, rb"P")),
    (b"-u", _given(_SQL, rb"U")),
    (b"-p", _found(_BEGIN + rb"(?:" + _SQL + rb")" + _TO + rb"(?<=[\s\"'])-P",
    rb"(?P<pw>[^\s\"'\\]{3,200})")),
    (b"-a", _given(rb"https?|xhs?", rb"a|auth")),
    (b"creds", flagged(rb"(?:src-|dest-)?creds")),
    (b"curl", _given(rb"curl", rb"b|cookie")),
    (b"curl", _given(rb"curl", rb"E|cert|proxy-cert")),
    (b"curl", _found(_BEGIN + rb"curl" + _TO + rb"(?<=[\s\"'])-[a-zA-Z]{0,9}[uU][ \t]?(?:\\{0,3}[\"'])?",
    rb"(?P<pw>[\w.@+-]{1,99}:[^\s\"'\\]{1,200})")),
    (b"smbclient", _found(_BEGIN + rb"smbclient" + _TO + rb"(?<=[\s\"'])-U[ \t]?",
    rb"(?P<pw>[^\s\"'\\]{1,200})")),
    (b"lftp", _given(rb"lftp", rb"u")),
    (b"wpa_passphrase", _found(rb"wpa_passphrase[ \t]+\S{1,64}[ \t]+")),
    (b"alias set", _found(rb"alias set[ \t]+\S{1,64}[ \t]+\S{1,200}[ \t]+",
    rb"(?P<pw>[^\s\"'\\]{3,200}[ \t]+[^\s\"'\\]{3,200})")),
    (b"thin:", _found(rb"(?<=thin:)\w{1,64}/", rb"(?P<pw>[^\s\"'\\@]{1,200})(?=@)")),
    (b"sqlplus", _found(_BEGIN + rb"sqlplus[ \t]+(?:-\w+[ \t]+){0,4}\w{1,64}/",
    rb"(?P<pw>[^\s\"'\\@]{1,200})")),
    (b"echo", _found(_BEGIN + rb"echo[ \t]+(?:-\w+[ \t]+)?", _VALUE
    + rb"(?=[\"'\\]{0,4}[ \t]*\|[^\n]{0,80}?(?:sudo|stdin|passwd))")),
    (b"pass", _found(rb"-pass(?:in|out)?[ =]pass:")),
    (
        b" ",
        _found(
            rb"(?=[sEA])"
            + _BEGIN
            + rb"(?:setx?|set -\w{1,3}|setenv|ENV|ARG)[ \t]+"
            + SECRET_NAME
            + rb"[ \t]+(?![=:]|-)",
            rb"(?:" + QUOTED + rb"|(?P<pw>[^\s\"'\\]{4,400}))",
        ),
    ),
    # A program that refuses what it was given, and a line that goes on below.
    (b"':", _found(rb"--?[\w-]{0,40}(?:token|key|secret|passw(?:or)?d|pass)\\{0,3}[\"']:[ ]", _WHOLE)),
    (b"\":", _found(rb"--?[\w-]{0,40}(?:token|key|secret|passw(?:or)?d|pass)\\{0,3}\":[ ]", _WHOLE)),
    (b"", _found(BELOW_BEGINS + _BELOW, rb"(?![\w.-]{1,99}[:=])" + _MIXED + rb"(?P<pw>[^\s\"'\\]{6,400})")),
    # In JSON that stands in JSON in JSON, quotes have more backslashes than elsewhere.
    (b'\\\\\\\\"', re.compile(
        rb"(?P<before>(?P<deep>\\{4,63}\")" + SECRET_NAME + rb"(?P=deep)[ ]?:[ ]?(?P=deep))" + NEW
        + rb"(?P<pw>[^\n]{1,4000}?)(?=(?<!\\)(?P=deep))"
    )),
    # Files.
    (b":543", _found(LINE_BEGINS, rb"(?P<pw>[\w.*-]{1,200}:(?:543\d|\*):[\w*-]{1,64}:[\w.*-]{1,64}:"
    rb"[^\s\"'\\]{1,200})")),
    (b"\":", _found(rb"(?<!\\)\\{0,3}\"(?:d|p|q|dp|dq|qi|k)\\{0,3}\"[ ]?:[ ]?\\{0,3}\"", _MIXED
    + rb"(?P<pw>[\w-]{20,4000})(?=\\{0,3}\")")),
    (b"hwaddr", _found(rb"(?i:hwaddr)[ \t:=]{1,9}", rb"(?P<pw>[0-9a-fA-F]{12})(?!\w)")),
    (b"link/", _found(rb"link/[a-z]{2,12}[ \t]{1,9}", rb"(?P<pw>(?:[0-9a-fA-F]{2}:){19}[0-9a-fA-F]{2})")),
    # Accounts of a cloud.
    (b"arn:", _found(_WORD + rb"arn:aws[\w-]{0,12}:[\w-]{0,40}:[\w-]{0,40}:",
    rb"(?P<pw>[\w:/.@*+=,-]{2,400})")),
    (b"account", _found(rb"(?i:account_?id)\\{0,3}[\"']?[ ]?[:=][ ]?\\{0,3}[\"']?",
    rb"(?P<pw>\d{12})(?!\w)")),
    (b"requirepass", _found(rb"(?:requirepass|masterauth|bindpw|rootpw)[ \t]+")),
    (b"bindpw", _found(rb"(?:bindpw|rootpw)[ \t]+")),
    (b"value:", _found(
        rb"name:[ \t]*[\"']?" + SECRET_NAME + rb"[\"']?[ \t]*(?:\n|\\{1,3}n)[ \t]*value:[ \t]*"
    )),
    (b"login", _found(
        rb"(?:machine" + _BLANK + rb"{1,9}[^\s\"\\]{1,200}|default)" + _BLANK + rb"{1,9}login" + _BLANK
        + rb"{1,9}",
        rb"(?P<pw>[^\s\"\\]{1,200}(?:" + _BLANK + rb"{1,9}account" + _BLANK + rb"{1,9}[^\s\"\\]{1,200})?"
        + _BLANK + rb"{1,9}password" + _BLANK + rb"{1,9}[^\s\"\\]{1,200})",
    )),
    # As drivers of databases take it.
    (b"={", _found(rb"(?i:password|pwd)=",
    rb"(?P<pw>\{(?:[^}\n\"]|\}\}){1,200}\}(?:[^;\s\"'\\]{0,200}\})?)(?=;|$|[\"'\s\\])")),
    # A login without '//' before it.
    (b"@", _found(_BEGIN, rb"(?P<pw>[A-Za-z][\w.-]{0,63}:" + _MIXED
    + rb"[^\s\"'\\:@/,;<>(){}\[\]]{4,200})(?=@[A-Za-z][\w.-]{0,200}(?::\d{2,5}(?!\d)|\.[a-z]{2,}))")),
    # In the query of a URL.
    (b"=", _found(rb"(?<=[?&;])(?:key|auth|code|state|pw|pass|jwt|sid|hash|apikey|api)=", _MIXED
    + rb"(?P<pw>[\w.~%+/=-]{16,2000})")),
    # A variable of the environment, where the value looks like no word.
    (b"_key", _found(_WORD + rb"[A-Z][A-Z0-9_]{1,40}_KEY[ ]?=[ ]?\\{0,3}[\"']?", rb"(?=[^\s\"'\\]{0,60}\d)"
    rb"(?:(?=[^\s\"'\\]{0,60}[A-Z])(?=[^\s\"'\\]{0,60}[a-z])|(?=[0-9a-f]{16}))"
    rb"(?P<pw>[\w+/=.~-]{16,400})")),
    (b"key", _found(rb"\\{0,3}[\"']key\\{0,3}[\"'][ ]?:[ ]?\\{0,3}[\"']",
    rb"(?P<pw>[0-9a-f]{32,128})(?=\\{0,3}[\"'])")),
    (b"wandb", _found(rb"\\{0,3}[\"']wandb\w{0,20}\\{0,3}[\"'][ ]?:[ ]?\\{0,3}[\"']",
    rb"(?P<pw>[0-9a-f]{32,128})(?=\\{0,3}[\"'])")),
    (b"secret", _found(rb"[\"']key\\{0,3}[\"'][ ]?:[ ]?"
    rb"(?=\\{0,3}[\"'][^\"'\\\n]{1,200}\\{0,3}[\"'],[ ]?\\{0,3}[\"']secret)", QUOTED)),
    (b"password", _found(rb"type=\\{0,3}[\"']?password\\{0,3}[\"']?[^\n<>]{0,80}?value=")),
    (b"</user", re.compile(rb"(?P<before>(?i:<user(?:_?name)?>))" + NEW + rb"(?P<pw>[^<\s\"]{1,200})(?=</)")),
    (b"secretstr(", _found(rb"Secret(?:Str|Bytes)\(", QUOTED)),
    (b"guid", _found(rb"(?i:guid)[\"':= \\]{1,6}0x", rb"(?P<pw>[0-9a-fA-F]{16})(?!\w)")),
    (b"client_id", _found(rb"client_id\\{0,3}[\"']?[ ]?[:=][ ]?\\{0,3}[\"']?", rb"(?P<pw>\d{15,30})(?!\w)")),
    # A pair of name and password: the password first, then the name beside what took its place.
    (b"auth", _found(
        rb"auth\\{0,3}[\"']?[ ]?[:=][ ]?[(\[]\\{0,3}[\"'][^\"'\\\n]{1,200}\\{0,3}[\"'],[ ]?",
        QUOTED,
    )),
    (b"auth", _found(
        rb"auth\\{0,3}[\"']?[ ]?[:=][ ]?[(\[]",
        rb"\\{0,3}[\"'](?P<pw>[^\"'\\\n]{1,200})(?=\\{0,3}[\"'],[ ]?\\{0,3}[\"']<removed>)",
    )),
    # People.
    (b"pass", re.compile(
        rb"(?P<before>(?i:" + _ASK + rb")(?:[ \t](?:for|of|de|von)[ \t][\w.@-]{1,64})?" + _IS + rb")"
        + NEW + rb"(?i:" + _GOES_ON + rb")" + rb"(?:" + QUOTED + rb"|(?P<pw>[^\s\"'\\]{4,200}))"
    )),
    (b"", re.compile(
        KEYS_BEGIN + rb"(?P<before>(?i:" + _KEYS + rb")(?:[ \t](?:for|of)[ \t][\w.@-]{1,64})?" + _IS + rb")"
        + NEW + _MIXED + rb"(?P<pw>[^\s\"'\\]{6,400})"
    )),
    (b"key", re.compile(
        rb"(?P<before>(?i:(?:api|access|secret|private|auth)[ _-]?key)[ \t]{1,3})"
        + NEW + _MIXED + rb"(?P<pw>[\w+/=.-]{16,400})"
    )),
    (b"", re.compile(
        LOGINS_BEGIN + rb"(?P<before>(?i:login|key|secret|token|netrc|cookie|wandb"
        rb"|xauth)(?![a-z])[^\n\"]{0,60}?(?<![0-9a-zA-Z_-]))"
        rb"(?P<pw>[0-9a-f]{32,128})(?![0-9a-zA-Z_])"
    )),
    (b"p", re.compile(
        rb"(?P<before>(?:(?<=\\[nrt])|(?<![A-Za-z]))(?:pass|pw|PASS|PW)(?:=|:[ ]?))" + NEW + _MIXED
        + rb"(?P<pw>[^\s\"'\\,;&)]{6,200})"
    )),
    (b"pin", _found(rb"(?:(?<=\\[nrt])|(?<![A-Za-z]))PIN(?:[ _]?CODE)?(?:=|:[ ]?)",
    rb"(?P<pw>\d{4,8})(?![\w.])")),
    # All words to the end of the line, where a line begins with the name.
    (b"pass", re.compile(
        rb"(?P<before>(?:^|(?<=\n)|(?<=\\n)|(?<=\"))[ \t]{0,40}(?:export )?[\w.-]{0,40}(?i:" + _ASK
        + rb")\w{0,10}[ \t]{0,9}[:=][ \t]{0,9})" + NEW + rb"(?P<pw>" + _WORDS + rb")"
    )),
)  # fmt: skip
