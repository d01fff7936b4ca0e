"""Which pieces of a text could hold something private: a quick look that may say yes too often and never no.

A trace says the same few things a hundred thousand times, with other numbers in them. A piece's form is the
piece with every digit a zero and every letter small: whatever tells a pattern's match is looked for in forms,
once in each. What a piece could hold may go on in the next, as a flag's value does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lostflops.privacy import secrets

_SMALL = bytes.maketrans(b"123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"000000000abcdefghijklmnopqrstuvwxyz")
NOTHING, ALONE, WITH_NEXT, WITH_MANY = 0, 1, 2, 3
MANY = 12  # words of a command or a file between its name and its secret
# Forms and pieces are forgotten when there are so many: memory stays bounded.
MOST = 1 << 17
# What goes on for many lines, or holds what ends a piece: such a text is taken as a whole.
_LONG = (
    b"\0",
    b"-----BEGIN ",
    b"---- BEGIN ",
    b"PuTTY-User-Key",
    b"$ANSIBLE_VAULT",
    b'"""',
    b"'''",
    b": |",
    b": >",
)


def form(text: bytes) -> bytes:
    """The text without what differs between two of a kind."""
    return text.translate(_SMALL)


# Looked for in forms, so digits are zeros. A value may stand in the next piece: a name or a flag before it.
_NEXT_WORDS = (
    *map(form, secrets.ASSIGNING), b"--", *map(form, secrets.WHO_WORDS),
    b"git_", b"job_", b"jobname", b"wandb_", b"_name", b"project", b"workspace", b'"run_name', b'"experiment',
    b'"entity',
    b"requirepass", b"bindpw", b"rootpw", b"guid", b"client_id", b"wandb", b"thin:", b"value:",
    b"uuid", b"serial", b"board", b"service",
    b"- name:", b"hydra.job", b"serviceaccount", b"namespace", b"jobname",
    b'"pt_profiler_', b'"tw_', b'"mast_', b'"slurm_', b'"k0s_', b'"cluster"',
)  # fmt: skip
# Commands and files whose secret stands a few words behind.
_MANY = re.compile(
    rb"sshpass|mysql|mariadb|mongo|docker|podman|nerdctl|helm|oras|redis-cli|ldap|zip[ \"']|0z|openssl"
    rb"|creds|curl"
    rb"|smbclient|lftp|sqlplus|machine(?!\w)|default(?:\s|\\)|alias set|xauth|netrc|wpa_|echo |ssh|sftp|rsync"
    rb"|https?[ \"']|xhs?[ \"']|sqlcmd|bcp|[it]sql|pdsh|clush|horovodrun|deepspeed"
    rb"|srun|sbatch|salloc|mpirun|mpiexec|setx|set -|setenv"
)
_NEXT = re.compile(rb"(?:host|host_?name|node_?name|user_?name|user|owner|mail|login|account)\"\s*(?::|$)")
_WORDS = (
    b"//", b"@", b"ssh ", b" nccl ", b"lsb_hosts=", b" aaaa", b"machine", b"-----begin ", b":aa", b"0q~",
    b".atlasv0.", b"webhook", b"hooks.slack", b"discord", b".apps.googleusercontent", b":\\", b"\\\\",
    b"\\u00", b"ssws ", b"---- begin ", b"hostname ", b"addresses of (", b".pt.trace", b"arn:aws", b"account",
    b"hwaddr", b"link/", b"list=", b"batchhost", b"nodename", b"nodeaddr", b"userdomain", b"computername",
    b"logonserver", b":000", b"userid=", b"groupid=", b"user.name", b"workdir=", b"command=", b"askpass=",
)  # fmt: skip
_SHAPES = [
    (form(prefix), re.compile(re.escape(form(prefix)) + rest.lower())) for prefix, rest in secrets.SHAPES
]
# What every address with colons has.
COLONS = (
    rb"(?::[0-9a-f]{2}){2}:|(?::[0-9a-f]{4}){3}|(?::[0-9a-f]{1,4}){7}|fe[08]0:|::ffff:"
    rb"|[0-9a-f]{4}(?::[0-9a-f]{1,4})*::"
)
_LOOKS = re.compile(
    # A folder: a slash where a word cannot go on.
    rb"(?:(?<![\w/~.])|(?<=\\[nrt])|(?<=\\u[0-9a-f]{4})|(?<=-[il])|(?<=[\s\"'(=:]\.)|(?<=[\s\"'(=:]\.\.)"
    rb"|(?<=\\[nrt]\.\.)|(?<=^\.\.))/[^\s/\"':;,()<>|*?\[\]{}=&#]|\"(?:\.\.)?/"
    rb"|(?:hosts?|host_?name|nodename|nodelist|node_name|_addr|master_ip|endpoint|pod_name|server|head_node"
    rb"|user|user_?name|logname|owner|login)\\{0,3}[\"']?[ \t]{0,9}[=:]|id=0+\(|~[a-z_]"
    rb"|\.(?:com|org|edu|gov|local|internal|lan|corp|intra|intranet|cluster|home|arpa|example|localdomain"
    rb"|compute)(?!\w)"
    # Addresses, and numbers of network cards.
    rb"|\.0{1,3}\.0{1,3}\.0|ip-0|-[0-9a-f]{2}-[0-9a-f]{2}-|\.[0-9a-f]{4}\.[0-9a-f]{4}"
    rb"|" + COLONS + rb"|(?:gpu|mig|dla)-[0-9a-f]{8}-"
    # Values without a beginning of their own.
    rb"|(?:pw|pin)[=: ]|[0-9a-f]{32}|</user|slots=|(?:on|from) (?:host|node|machine)|-us0|\$[\w-]{1,9}\$"
    rb"|\.[\w-]{6}\.[\w-]{27}|s\.[a-z0-9]{24}|[?&;](?:code|state|jwt|sid|hash|api)="
    # In another spelling.
    rb"|%[0-9a-f]{2}|[a-z0-9+/]{20}"
    # Machines and people in logs and in variables.
    rb"|\[[a-z][\w.-]*:\d{4,7}\]|_comm_id|process_ip|display=|address|jobid|_hosts=|user id|uid=|--include"
    rb"|\[[a-z][\w.-]*\]:0|\[[a-z][\w.-]*_0{3,8}_0{1,4}\]|(?:^|\\[nr]|\")[ \t]{0,40}user[ \t]|user_id"
    rb"|:[x*!]?:0{1,10}:0{1,10}:|[-dlcbps][rwxst-]{9}[.+@]?[ \t]{1,9}0|(?: |u003c|&lt;)<?[\w.+-]{1,99}@"
    rb"|(?:^|\\[nr]|\")[ \t]{0,40}(?:author|commit|committer|from|to|cc|[a-z-]{1,25}-by):"
    rb"|(?:slurm|sbatch|salloc|srun|pbs|lsb|sge|cobalt)_|_cluster|/home/|/users/|(?:_env|_prefix)="
)  # fmt: skip


class Suspects:
    """Remembers which forms could hold something, and what became of those texts that were looked into."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        # What became of a text that was looked into, and what it held.
        self.answers: dict[bytes, tuple[bytes, list[tuple[str, bytes]]]] = {}
        self.words: frozenset[bytes] = frozenset()

    def __reduce__(self) -> tuple[type[Suspects], tuple[()]]:
        return Suspects, ()

    def look_for(self, words: Iterable[bytes]) -> None:
        """Suspect pieces with one of these words, too."""
        forms = frozenset(map(form, words))
        if forms != self.words:
            self.words = forms
            self._known.clear()
            self.answers.clear()

    def suspects(self, text: bytes) -> bool:
        """Whether a text could hold something."""
        return self._judged((form(text),))[0] != NOTHING

    def runs(self, pieces: list[bytes]) -> list[tuple[int, int]]:
        """The first piece and the one behind the last, of each run that could hold something.

        A text's beginning and end are always among them: patterns know them.
        """
        marks = bytearray(self._judged([form(piece) for piece in pieces]))
        marks[0] = marks[0] or ALONE
        marks[-1] = marks[-1] or ALONE
        found: list[tuple[int, int]] = []
        for match in re.finditer(rb"[\1-\3]", marks):
            first = match.start()
            end = first + 1 if marks[first] == ALONE else _beyond(pieces, first, marks[first])
            if found and first < found[-1][1]:
                found[-1] = (found[-1][0], max(end, found[-1][1]))
            else:
                found.append((first, end))
        return found

    def _judged(self, forms: Iterable[bytes]) -> bytes:
        known = self._known
        for memory in (known, self.answers):
            if len(memory) > MOST:
                memory.clear()
        for new in set(forms).difference(known):
            known[new] = self._judge(new)
        return bytes(map(known.__getitem__, forms))

    def _judge(self, new: bytes) -> int:
        if _MANY.search(new):
            return WITH_MANY
        if any(word in new for word in _NEXT_WORDS) or _NEXT.search(new):
            return WITH_NEXT
        if (
            any(word in new for word in _WORDS)
            or any(word in new for word in self.words)
            or _LOOKS.search(new)
            or any(word in new and shape.search(new) for word, shape in _SHAPES)
        ):
            return ALONE
        return NOTHING


def parted(text: bytes) -> list[bytes]:
    """The lines of a text and the members of its objects; one piece where more may belong together."""
    if any(word in text for word in _LONG):
        return [text]
    return text.replace(b',"', b',\0"').replace(b', "', b', \0"').replace(b"\n", b"\n\0").split(b"\0")


def without_overlap(runs: list[tuple[int, int]], others: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The runs that share no piece with one of the others."""
    taken = {piece for run in others for piece in range(*run)}
    return [run for run in runs if taken.isdisjoint(range(*run))]


def _beyond(pieces: list[bytes], first: int, mark: int) -> int:
    """Behind the last piece with words that may belong to this one, and the end of the string there."""
    most = 2 if mark == WITH_NEXT else MANY
    quotes = _quotes(pieces[first])
    words, at = 0, first + 1
    while at < len(pieces) and (words < most or quotes % 2):
        words += not pieces[at].isspace()
        quotes += _quotes(pieces[at])
        at += 1
    return at


def _quotes(piece: bytes) -> int:
    return piece.count(b'"') - piece.count(b'\\"')
