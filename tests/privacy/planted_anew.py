"""Planted a third time: more vendors, commands, variables, homes, and the same in another spelling.

Lines are as in `planted`; each survived once.
"""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

from planted import ALNUM as A
from planted import B64 as B
from planted import HEX32 as H

S = "Zq7xVb3nMk"
H40, H64 = H + H[:8], H + H


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def q(text: str) -> str:
    return quote(text, safe="")


ANEW: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("anew: wandb quoted", f'"wandb": "{H40}"', (H40,)),
    ("anew: langsmith", f"lsv2_pt_{H}_9f3b7c1e5a", (H,)),
    ("anew: langfuse pk", f"pk-lf-{H[:8]}-{H[:4]}-{H[4:8]}-{H[8:12]}-{H[:12]}", (H[:8],)),
    ("anew: fireworks", f"fw_{A[:24]}", (A[:24],)),
    ("anew: cerebras", f"csk-{A}", (A,)),
    ("anew: bitbucket app", f"ATBB{A[:32]}", (A[:32],)),
    ("anew: azure devops pat", f"AZURE_DEVOPS_EXT_PAT={A}", (A,)),
    ("anew: azure fn key", f"https://x.azurewebsites.net/api/f?code={B}==", (B,)),
    ("anew: slack hook esc", f"https:\\/\\/hooks.slack.com\\/services\\/T7X\\/B9Y\\/{A[:24]}", (A[:24],)),
    ("anew: slack gov", f"https://hooks.slack-gov.com/services/T7X/B9Y/{A[:24]}", (A[:24],)),
    ("anew: discord canary", f"https://ptb.discord.com/api/webhooks/987263548190/{A}{A[:28]}", (A,)),
    ("anew: discord v10", f"https://discord.com/api/v10/webhooks/987263548190/{A}{A[:28]}", (A,)),
    ("anew: telegram 7", f"1234567:AA{A[:33]}", (A[:33],)),
    ("anew: pushover", f"PUSHOVER_USER_KEY={A[:30]}", (A[:30],)),
    ("anew: vault old", f"s.{A[:24]}", (A[:24],)),
    ("anew: netrc account", f"machine api.x login alice17 account hushhush password {S}", (S, "hushhush")),
    (
        "anew: k8s jwt b64",
        b64(f"eyJhbGciOiJSUzI1NiJ9.eyJ{A}.{A}"),
        (b64(f"eyJhbGciOiJSUzI1NiJ9.eyJ{A}.{A}")[:30],),
    ),
    (
        "anew: ssh cmd",
        "ssh -o ProxyCommand='ssh alicesmith@gate9 -W %h:%p' bobjones@rackbox77",
        ("alicesmith", "bobjones", "gate9", "rackbox77"),
    ),
    ("anew: ssh -l", "ssh -l alicesmith rackbox77", ("alicesmith", "rackbox77")),
    ("anew: ssh bare", "ssh rackbox77 nvidia-smi", ("rackbox77",)),
    (
        "anew: ssh -J",
        "ssh -J alicesmith@gate9 bobjones@rackbox77",
        ("alicesmith", "gate9", "bobjones", "rackbox77"),
    ),
    ("anew: mysql quoted", f"mysql -u alicesmith -p'{S}' db", (S,)),
    ("anew: mysqlsh", f"mysqlsh alice17:{S}@db7:3306", (S,)),
    ("anew: curl joined opts", f"curl -su alice17:{S} https://x", (S,)),
    ("anew: curl -E", f"curl -E cert.pem:{S} x", (S,)),
    ("anew: http pie", f"http -a alice17:{S} x", (S,)),
    (
        "anew: sqlserver",
        f"Server=tcp:db7,1433;Database=runs;User ID=alicesmith;Password={S};Encrypt=true",
        (S, "alicesmith"),
    ),
    ("anew: sqlserver pwd", f"Driver={{ODBC}};Server=db7;Uid=alicesmith;Pwd={S};", (S, "alicesmith")),
    ("anew: sqlserver braces", "Password={Zq7;x}Vb3n};", ("Vb3n",)),
    ("anew: sqlcmd", f"sqlcmd -S db7 -U alicesmith -P {S}", (S, "alicesmith")),
    ("anew: bcp", f"bcp x in y -U alicesmith -P{S}", (S,)),
    ("anew: os.environ", f"os.environ['HF_TOKEN'] = '{S}'", (S,)),
    ("anew: os.environ dq", f'os.environ["OPENAI_API_KEY"]="{S}"', (S,)),
    ("anew: b64 of assignment", b64(f"password={S}"), (b64(f"password={S}")[8:20],)),
    (
        "anew: b64 of export",
        b64(f"export OPENAI_API_KEY=sk-proj-{A}\n"),
        (b64(f"export OPENAI_API_KEY=sk-proj-{A}\n")[30:60],),
    ),
    ("anew: b64 url login", b64(f"https://alice17:{S}@x"), (b64(f"https://alice17:{S}@x")[12:24],)),
    ("anew: b64 of hf", b64(f"hf_{A[:34]}"), (b64(f"hf_{A[:34]}")[8:24],)),
    ("anew: b64 of AKIA", b64("AKIAQX7VB3NM9KW5RT2Y"), (b64("AKIAQX7VB3NM9KW5RT2Y")[4:24],)),
    (
        "anew: b64 of PEM",
        b64(f"-----BEGIN PRIVATE KEY-----\n{B}\n"),
        (b64(f"-----BEGIN PRIVATE KEY-----\n{B}\n")[40:60],),
    ),
    ("anew: b64 of glpat", b64(f"glpat-{A[:20]}"), (b64(f"glpat-{A[:20]}")[8:24],)),
    ("anew: b64 of sk-ant", b64(f"sk-ant-api03-{A}"), (b64(f"sk-ant-api03-{A}")[20:44],)),
    ("anew: percent hf", f"t%3Dhf_{A[:34]}", (A[:34],)),
    ("anew: percent token json", q(f'{{"token":"{S}"}}'), (S,)),
    ("anew: percent url", q(f"postgres://alice17:{S}@db7/x"), (S,)),
    ("anew: percent whole", "".join(f"%{ord(c):02X}" for c in f"password={S}"), ("%5A%71%37%78",)),
    ("anew: percent double", q(q(f"password={S}")), (S,)),
    ("anew: percent bearer", q(f"Authorization: Bearer {B}"), (B,)),
    ("anew: percent sk", f"key%3Dsk-proj-{A}", (A,)),
    ("anew: percent AKIA", "id%3DAKIAQX7VB3NM9KW5RT2Y", ("AKIAQX7VB3NM9KW5RT2Y",)),
    ("anew: query key", f"/x?key={A}", (A,)),
    ("anew: query auth", f"/x?auth={A}", (A,)),
    ("anew: query code", f"/cb?code={A}&state={A[::-1]}", (A,)),
    ("anew: s3 keys", f"storage_options={{'key': '{A[:20]}', 'secret': '{B}'}}", (B, A[:20])),
    ("anew: supabase sk", f"sb_secret_{A[:31]}", (A[:31],)),
    ("anew: notion", f"secret_{A}{A[:3]}", (A,)),
    ("anew: pinecone", f"pcsk_{A[:6]}_{A}", (A,)),
    ("anew: fly", f"fo1_{A}", (A,)),
    ("anew: netlify", f"nfp_{A}", (A,)),
    ("anew: vercel", f"vcp_{A}", (A,)),
    ("anew: pulumi", f"pul-{H40}", (H40,)),
    ("anew: buildkite", f"bkua_{H40}", (H40,)),
    ("anew: circleci", f"CCIPAT_{A}_{H40}", (A,)),
    ("anew: shodan", f"SHODAN_KEY={A[:32]}", (A[:32],)),
    ("anew: nr insert", f"NRII-{A[:32]}", (A[:32],)),
    ("anew: okta", f"SSWS 00{A}", (A,)),
    ("anew: kaggle.json", f'{{"username":"alicesmith","key":"{H}"}}', (H, "alicesmith")),
    ("anew: win json", json.dumps(r"C:\Users\alicesmith\x.py"), ("alicesmith",)),
    ("anew: u short", "/u/alicesmith", ("alicesmith",)),
    ("anew: nethome", "/nethome/alicesmith", ("alicesmith",)),
    ("anew: ihome", "/ihome/hushgroup/alicesmith", ("hushgroup", "alicesmith")),
    ("anew: ccs", "/ccs/home/alicesmith", ("alicesmith",)),
    ("anew: blank path", '"/home/alice smithson/run/x.py"', ("smithson",)),
    ("anew: nccl comm", "NCCL_COMM_ID=rackbox77:29500", ("rackbox77",)),
    ("anew: mpi vader", "[rackbox77:04711] mca: base: components_open", ("rackbox77",)),
    ("anew: slurm working", "SLURM_WORKING_CLUSTER=hushcluster:rackbox77:6817", ("hushcluster", "rackbox77")),
    (
        "anew: slurm account",
        "SBATCH_ACCOUNT=hush-hush SLURM_ACCOUNT=hush-hash SALLOC_ACCOUNT=hush-hish",
        ("hush-hush", "hush-hash", "hush-hish"),
    ),
    ("anew: slurm partition", "SLURM_PARTITION=hushpart", ("hushpart",)),
    ("anew: slurm uid", "SLURM_JOB_UID=1017 SLURM_JOB_GROUP=hushgroup", ("hushgroup",)),
    ("anew: pbs jobid", "PBS_JOBID=123.rackbox77", ("rackbox77",)),
    (
        "anew: lsf",
        "LSB_MCPU_HOSTS='rackbox77 8 rackbox78 8' LSB_SUB_HOST=rackbox79 LSFUSER=alicesmith",
        ("rackbox", "alicesmith"),
    ),
    ("anew: cobalt", "COBALT_PARTNAME=rackbox77", ("rackbox77",)),
    (
        "anew: virtualenv",
        "VIRTUAL_ENV=/vault9/hushgroup/.venv CONDA_PREFIX=/vault9/hashgroup/conda",
        ("hushgroup", "hashgroup"),
    ),
    ("anew: ps1", "PS1='[alicesmith@rackbox77 ~]$'", ("alicesmith", "rackbox77")),
    ("anew: display", "DISPLAY=rackbox77:10.0", ("rackbox77",)),
    ("anew: ray", f"ray start --address=rackbox77:6379 --redis-password={S}", ("rackbox77", S)),
    ("anew: ray addr", "RAY_ADDRESS=rackbox77:6379", ("rackbox77",)),
    ("anew: accelerate", "main_process_ip: rackbox77", ("rackbox77",)),
    ("anew: deepspeed", "--include rackbox77:0,1@rackbox78:2", ("rackbox77", "rackbox78")),
    ("anew: horovod", "horovodrun -np 8 -H rackbox77:4,rackbox78:4 python x", ("rackbox77", "rackbox78")),
    ("anew: pdsh", "pdsh -w rackbox[77-79] nvidia-smi", ("rackbox",)),
    ("anew: clush", "clush -w rackbox77 x", ("rackbox77",)),
    ("anew: escaped letters", f"password\\u003d{S}\\u0026x\\u003d1", (S,)),
    ("anew: all letters escaped", "".join(f"\\u00{ord(c):02x}" for c in f"token={S}"), ("\\u005a\\u0071",)),
    ("anew: firebase", f"AAAAabcdefg:APA91b{S}{S}{S}", (f"APA91b{S}",)),
    ("anew: lambda", f"secret_train_0123456789abcdef0123456789abcdef.{S}", (S, "0123456789abcdef")),
)
