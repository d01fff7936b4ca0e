"""How machines, people and jobs stand in variables, flags, commands and logs.

Of each kind: the expressions, and words of which a text must hold one for them to find anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from lostflops.privacy.patterns import values

START = rb"(?:" + values.ESCAPE + rb"|(?<![\w.\\]))"
# The same in a text: as a variable, a flag, or an element of what Python prints.
QUOTE = rb"(?:\\{0,3}[\"'])?"
_GIVEN = rb"(?:" + QUOTE + rb"[ \t]{0,4}(?:=|:(?!:))[ \t]{0,4}" + QUOTE + rb")"
FLAG_GIVEN = rb"(?:=|[ \t]{1,4}|\\{0,3}[\"']\s{0,4},\s{0,4})" + QUOTE
_VARIABLE = rb"(?:" + values.ESCAPE + rb"|(?<![A-Za-z0-9\\]))"
_HOST_NAME = (
    rb"((?!\\)[A-Za-z0-9][\w.-]*(?:\[[\d,-]+\][\w.-]*)?(?:(?::\d+)?,[A-Za-z][\w.-]*(?:\[[\d,-]+\])?)*)"
)
HOSTS = (
    re.compile(
        rb"(" + _VARIABLE + rb"(?:[A-Z]+_){0,4}(?:(?:PG)?HOST|HOSTNAME|HOSTS|NODENAME|NODELIST|NODE_NAME"
        rb"|MASTER_ADDR|MASTER_IP|ENDPOINT|POD_NAME|SERVER|HEAD_NODE|PRIMARY_ADDR|TOPOLOGY_ADDR|COMM_ID"
        rb"|USERDOMAIN|COMPUTERNAME|LOGONSERVER)"
        + _GIVEN + rb")" + _HOST_NAME
    ),
    re.compile(
        rb"(--(?:master|head|rdzv|main|leader|local)[_-](?:addr|address|endpoint|ip|node)"
        + FLAG_GIVEN + rb")" + _HOST_NAME
    ),
    re.compile(rb"(--(?:host|hosts|hostname|nodelist|server|node)" + FLAG_GIVEN + rb")" + _HOST_NAME),
    # Of a word that many things are called by, the value must look like a machine.
    re.compile(
        # Behind two backslashes and 'n' a line may begin, in JSON that stands in JSON.
        rb"((?:" + _VARIABLE + rb"|(?<=\\\\[nr]))(?:host|hostname|host_name|nodename|node_name)" + _GIVEN
        + rb")(?=[a-zA-Z][\w.-]*[\d.-])" + _HOST_NAME
    ),
    re.compile(
        rb"(" + START + rb"(?:srun|sbatch|salloc|mpirun|mpiexec|prun|horovodrun|pdsh|clush|dsh|pssh|jsrun"
        rb"|ssh)(?=[\s\"'\\])(?:[^\n;|:}]|:(?![\s\"])){0,300}?(?<=[\s\"'])"
        rb"(?:-w|-H|-host)" + FLAG_GIVEN + rb")" + _HOST_NAME
    ),
    # What else is called an address is often none: the value must look like a machine.
    re.compile(
        rb"(" + _VARIABLE + rb"(?:(?:[A-Z]+_){0,4}ADDRESS=|DISPLAY=|(?:main|master)_process_ip:[ ]?"
        rb"|PBS_JOBID=\d+(?:\[\d*\])?\.|--(?:[\w-]{1,20}-)?address" + FLAG_GIVEN + rb")"
        + QUOTE + rb")(?=[a-zA-Z][\w.-]*[\d.-])" + _HOST_NAME
    ),
    re.compile(rb"(--include" + FLAG_GIVEN + rb")(?=[a-zA-Z][\w.-]*\d)([A-Za-z][\w.-]*)(?=[:@])"),
    re.compile(rb"(--include" + FLAG_GIVEN + rb"[\w.:,-]{1,200}@)([A-Za-z][\w.-]*)"),
    # Slurm's `scontrol`, ssh's and Kubernetes' files, and what a trace is called by PyTorch's handler.
    re.compile(
        rb"(" + _VARIABLE + rb"(?:(?:Req|Exc|Sched)?NodeList|BatchHost|NodeName|NodeAddr)=)" + _HOST_NAME
    ),
    re.compile(rb"(" + values.LINE_BEGINS + rb"HostName[ \t=]{1,9})" + _HOST_NAME),
    re.compile(rb"(" + values.LINE_BEGINS + rb"(?:- )?nodeName:[ \t]{0,9}" + QUOTE + rb")" + _HOST_NAME),
    re.compile(
        rb"((?:" + values.ESCAPE + rb"|^|(?<=[\s\"'/])))([A-Za-z][\w.-]*?)"
        rb"(?=_\d{1,9}\.\d{10,20}\.pt\.trace)"
    ),
    # Logs of torchelastic, Gloo and c10d.
    re.compile(rb"(\[)(?=[\w.-]*\d)([A-Za-z][\w.-]*?)(?=_\d{3,8}_\d{1,4}\])"),
    re.compile(rb"(\[)(?=[\w.-]*[\d.-])([A-Za-z][\w.-]*)(?=\]:\d)"),
    re.compile(rb"((?i:addresses? of) \()([A-Za-z][\w.-]*)(?=, \d{1,5}\))"),
    # Open MPI's log, and where ssh goes.
    re.compile(rb"(\[)(?=[\w.-]*\d)([A-Za-z][\w.-]*)(?=:\d{4,7}\] )"),
    re.compile(
        rb"(" + START + rb"ssh(?:[ \t]{1,4}-(?:[46AaCfGgKkMNnqsTtVvXxYy]{1,9}|[BbcDEeFIiJLlmOopQRSWw]"
        rb"[ \t]{0,4}(?:'[^'\n]{0,200}'|[^\s\"'-][^\s\"']{0,200}))){0,9}[ \t]{1,4})"
        rb"(?=[a-zA-Z][\w.-]*[\d.-])([A-Za-z][\w.-]*)(?![\w.@-])"
    ),
    re.compile(rb"((?:" + values.ESCAPE + rb"|^|(?<=[\s\"])))([A-Za-z][\w.-]*)(?=[ \t]+(?:max_)?slots=\d)"),
    re.compile(rb"(" + START + rb"(?i:on|from) (?:host|node|machine) )(?=[\w.-]*[\d.-])([A-Za-z][\w.-]*)"),
    re.compile(rb"((?:" + values.ESCAPE + rb"|^|(?<=[\s\"]))())([A-Za-z][\w.-]*)(?=:\d+:\d+ \[\d+\] NCCL )"),
)  # fmt: skip
_USER_NAME = rb"((?!\\)[A-Za-z_][\w.-]*)"
_PERSON = rb"((?!\\)[^\s<>\"'\\=,:;()]{1,60}(?: [^\s<>\"'\\=,:;()]{1,60}){0,4})"
_RIGHTS = rb"[-dlcbps][rwxsStT-]{9}[.+@]?[ \t]{1,9}\d{1,9}[ \t]{1,9}"  # as `ls -l` writes them
Needed = Callable[[bytes], bool]  # whether a text in small letters may hold something


def _one_of(*words: bytes) -> Needed:
    return lambda lower: any(word in lower for word in words)


_NUMBERS_OF_ACCOUNT = rb":[x*!]?:\d{1,10}:\d{1,10}:"  # as lists of accounts write them


def _account(lower: bytes) -> bool:
    return re.search(_NUMBERS_OF_ACCOUNT, lower) is not None


# Each with what a text must hold for it, which is found a hundred times faster.
USERS: tuple[tuple[Needed, re.Pattern[bytes]], ...] = (
    (
        _one_of(b"user=", b"username=", b"user_name=", b"logname=", b"owner="),
        re.compile(
            rb"("
            + _VARIABLE
            + rb"(?:[A-Z]+_){0,3}(?:USER|USERNAME|USER_NAME|LOGNAME|OWNER)="
            + QUOTE
            + rb")"
            + _USER_NAME
        ),
    ),
    (
        _one_of(b"user=", b"username=", b"user_name=", b"login=", b"owner="),
        re.compile(
            rb"(" + _VARIABLE + rb"(?:user|username|user_name|login|owner)=" + QUOTE + rb")" + _USER_NAME
        ),
    ),
    (
        _one_of(b"user", b"logname", b"owner", b"login"),
        re.compile(
            rb"((?<=['\"])(?i:(?:[a-z]+[_.]){0,3}(?:user|username|logname|owner|login))"
            rb"\\{0,3}['\"][ ]?:[ ]?\\{0,3}['\"])" + _USER_NAME
        ),
    ),
    (
        _one_of(b"--user", b"--owner", b"--login"),
        re.compile(rb"(--(?:user|username|owner|login)" + FLAG_GIVEN + rb")" + _USER_NAME),
    ),
    (
        _one_of(b"user", b"owner", b"login"),
        re.compile(
            rb"((?:^|(?<=\n)|(?<=\\[nr]))(?:user|username|user_id|owner|login)[ \t]{0,9}[=:][ \t]{0,9})"
            + _USER_NAME
        ),
    ),
    (
        _one_of(b"pguser=", b"userid=", b"groupid="),
        re.compile(rb"(" + _VARIABLE + rb"(?:PGUSER=|(?:UserId|GroupId)=))" + _USER_NAME),
    ),
    # Files of ssh and of Kubernetes, lists of accounts and of files, and git's.
    (
        _one_of(b"user ", b"user\t"),
        re.compile(rb"(" + values.LINE_BEGINS + rb"User[ \t]{1,9})" + _USER_NAME + rb"(?=[\s\"\\]|$)"),
    ),
    (
        _one_of(b"- name:"),
        re.compile(
            rb"("
            + values.LINE_BEGINS
            + rb"- name:[ \t]{1,9})"
            + _USER_NAME
            + rb"(?="
            + values.LINE
            + rb"[ \t]{1,40}user:)"
        ),
    ),
    (
        _account,
        re.compile(
            rb"((?:"
            + values.ESCAPE
            + rb"|^|(?<=[\s\"])))"
            + _USER_NAME
            + rb"(?="
            + _NUMBERS_OF_ACCOUNT
            + rb")"
        ),
    ),
    (_account, re.compile(rb"(" + _NUMBERS_OF_ACCOUNT + rb")" + _PERSON + rb"(?=:)")),
    (_one_of(b" ", b"\t"), re.compile(rb"(" + _RIGHTS + rb")" + _USER_NAME + rb"(?=[ \t])")),
    (
        _one_of(b" ", b"\t"),
        re.compile(rb"(" + _RIGHTS + rb"[\w.-]{1,60}[ \t]{1,9})" + _USER_NAME + rb"(?=[ \t])"),
    ),
    (
        _one_of(b"<", b"u003c", b"&lt;"),
        re.compile(
            rb"("
            + values.LINE_BEGINS
            + rb"(?i:author|commit|committer|from|to|cc|[a-z]{1,12}(?:-[a-z]{1,12})?-by):"
            rb"[ \t]{1,9})" + _PERSON + rb"(?= ?(?:<|\\+u003c|&lt;))"
        ),
    ),
    (
        _one_of(b"user.name"),
        re.compile(rb"(" + _VARIABLE + rb"user\.name[ =]{1,3}" + QUOTE + rb")" + _PERSON),
    ),
    (_one_of(b"id="), re.compile(rb"([ug]id=\d+\()" + _USER_NAME)),
    (
        _one_of(b"user", b"uid"),
        re.compile(rb"((?:^|(?<=[;:\"']))[ ]?(?:User ?I[Dd]|UID|Uid)[ ]?=[ ]?)" + _USER_NAME),
    ),
    (
        _one_of(b"ssh"),
        re.compile(rb"(" + START + rb"ssh(?=[ \t])[^\n;|\"]{0,200}?[ \t]-l[ \t]{0,4})" + _USER_NAME),
    ),
    (_one_of(b"lsfuser="), re.compile(rb"(" + _VARIABLE + rb"LSFUSER=)" + _USER_NAME)),
    (_one_of(b"~"), re.compile(rb"((?:" + values.ESCAPE + rb"|(?<![\w/\\]))~)" + _USER_NAME + rb"(?=/)")),
)
AUTHOR = values.assignment(rb"GIT_(?:AUTHOR|COMMITTER)_NAME")
LSF = re.compile(rb"(?<=HOSTS=)" + QUOTE + rb"[\w.-]+(?: [\w.-]+(?!=))*")
LSF_HOST = re.compile(rb"[A-Za-z][\w.-]*")
# All of a command that goes to other machines, and the prompt of a shell.
TO_HOSTS = re.compile(
    START + rb"(?:ssh|scp|sftp|rsync|mosh|autossh)(?=[\s\"'\\])(?:[^\n;|:}]|:(?![\s\"])){0,300}"
    rb"|\[[A-Za-z_][\w.-]*@[A-Za-z][\w.-]*(?= )"
)
AT_HOST = re.compile(rb"(?<=[\s\"'\[,])([A-Za-z_][\w.-]*)@([A-Za-z][\w.-]*)")
JOBS = (
    values.assignment(
        rb"(?:[A-Z]+_){0,3}(?:JOB_NAME|JOBNAME|JOB_ACCOUNT|JOB_PARTITION|JOB_QOS|JOB_COMMENT"
        rb"|JOB_RESERVATION|JOB_GROUP|CLUSTER_NAME|WORKING_CLUSTER|WANDB_(?:PROJECT|NAME|ENTITY|RUN_GROUP|RUN_ID|TAGS|NOTES)"
        rb"|EXPERIMENT_NAME|RUN_NAME|POD_NAMESPACE|PROJECT_NAME|COMET_WORKSPACE|NEPTUNE_PROJECT)"
        rb"|JobName(?==)|hydra\.job\.name"
        rb"|(?:serviceAccount(?:Name)?|(?<=[ \n\"'])namespace|^namespace|(?<=\\[nr])namespace)"
        rb"(?=\\{0,3}[\"']?:)"
        rb"|(?:SLURM|SBATCH|SALLOC|SRUN|PBS|LSB|SGE|COBALT)_(?:ACCOUNT|PARTITION|PARTNAME|QOS|QUEUE"
        rb"|RESERVATION|PROJECT|WCKEY|COMMENT)"
        rb"|(?<=\")(?:job_name|run_name|experiment_name|project_name|project_id|wandb_project|project"
        rb"|experiment|entity)"
    ),
    values.flagged(
        rb"job[_-]name|run[_-]name|experiment(?:[_-]name)?|project(?:[_-]name)?|wandb[_-][\w-]{1,40}"
        rb"|entity|account"
        rb"|partition|qos|reservation"
    ),
    values.flagged(
        rb"A|p|J|q", behind=START + rb"(?:srun|sbatch|salloc)(?=[\s\"'\\])(?:[^\n;|:}]|:(?![\s\"])){0,300}?"
    ),
)
HOST_WORDS = (
    b"HOST", b"NODE", b"POD_NAME", b"ADDR", b"ENDPOINT", b"SERVER", b"MASTER_IP", b"host", b"node", b"--",
    b" NCCL ", b"COMM_ID", b"process_ip", b"DISPLAY", b"JOBID", b"dsh", b"clush", b"horovodrun", b"]",
    b"HostName", b"nodeName", b"List=", b"BatchHost", b".pt.trace", b"addresses of", b"USERDOMAIN",
    b"COMPUTERNAME", b"LOGONSERVER", b"srun", b"prun", b"sbatch", b"salloc",
    b"mpi", b"slots=", b"machine", b"ssh",
)  # fmt: skip
USER_WORDS = (
    b"USER",
    b"User",
    b"UID",
    b"ssh",
    b"LOGNAME",
    b"OWNER",
    b"user",
    b"login",
    b"owner",
    b"id=",
    b"Id=",
    b"- name:",
    b":",
    b"rwx",
    b"rw-",
    b"r-",
    b"~",
)
JOB_WORDS = (
    b"JOB_", b"JOBNAME", b"SLURM_", b"SBATCH_", b"SALLOC_", b"SRUN_", b"PBS_", b"LSB_", b"SGE_", b"COBALT_",
    b"WORKING_CLUSTER", b"WANDB_", b"_NAME", b"_NAMESPACE", b"PROJECT", b"WORKSPACE", b"--", b"srun",
    b"sbatch", b"salloc", b'"run_name', b'"job_name', b'"experiment', b'"project', b'"wandb_', b'"entity',
    b"JobName=", b"hydra.job", b"serviceAccount", b"namespace",
)  # fmt: skip
