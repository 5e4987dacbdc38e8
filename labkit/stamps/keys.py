"""Secrets: the user's code needs them, and nothing that labkit writes may hold them.

`mask_secrets` is the one place that decides it, for texts that somebody else wrote: an exception's
message, a traceback, what a script prints, the rows of a measurement.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MASK = "***"
SHORTEST = 6  # characters: a shorter value stands in other words too
# The last word of the name of a secret, in a variable, an argument or a key. Here and below lengths
# are bounded for speed
SECRET = (
    r"[a-z0-9]{1,12}[_-]?keys?|[a-z]{0,12}(?:secret|token|passw(?:or)?d|passphrase)s?|"
    r"[a-z]{0,12}p(?:ass|wd?)|passcode|pat|auth|authorization|bearer|cred(?:ential)?s?|dsn|cookie|"
    r"session|sig|signature|sas|salt|jwt|psk|pin|otp|webhook|connection_?string|conn_?str(?:ing)?"
)
PREFIX = r"(?:\w{0,24}[_.-])?"  # the words before it: my_app.
# The name of a variable of the environment, one of whose words tells. PWD itself is a folder
SECRET_NAME = re.compile(
    rf"(?!(?:OLD)?PWD$)(?:.*_)?(?:{SECRET}|keys?|private\w*|license\w*|auth\w*|secret\w*|sk|conn|"
    r"login|seed|mnemonic|netrc)(?:_?\d+|_.*)?",
    re.IGNORECASE,
)
ORDINARY = re.compile(r"(?:/[\w.~-]+)+/?|\d+")  # a folder, a number
# 28 characters or more, letters and digits mixed, and what a service puts in front: gsk_, dckr_pat_
LONG_TOKEN = (
    r"(?:[A-Za-z0-9]{1,10}[_-]){0,3}"
    r"(?=[A-Za-z+=]*\d)(?=[\d+=]*[A-Za-z])[A-Za-z0-9+=]{28,}"
)
LOOKS_SECRET = re.compile(rf"{LONG_TOKEN}|\S*://\S*@\S*")  # whatever a variable is called
# What stands between a name and its value: token=, "token": , token=>, token%3D; ('token', ',
# <token>, key="token" value=, token is, invalid token
BETWEEN = (
    r"(?:[\"']?\s{0,4}(?:%3[AD]|[=-]>|[=:])\s{0,4}|[\"'],\s{0,2}(?=[\"'][^\"']*\d)|>(?=\S)|"
    r"[\"'] value=|\s(?:is|was|provided:)\s(?=\S*\d)|\s(?=[\"']?[A-Za-z_-]*\d\w*[A-Za-z]))"
)
WITHIN = (  # and in front of the value itself: ("user", "..., Str("..., b"...
    r"(?:[\[(][\"'][^\"'\s]{1,64}[\"'],\s{0,2}|\w{0,24}\()?(?:b?[\"'])?"
)
# How secrets look in a text. The first group is what stays, in front of the secret
SECRETS = (
    # A private key, from its BEGIN to its END; or a line of one alone
    re.compile(r"(?s)(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----).*?(?=-----END|\Z)"),
    re.compile(r"()(?m:^(?!/)(?=\S*\d)[A-Za-z0-9+/]{40,}={0,2}$)"),
    # In a URL: https://user:password@host; https://host/path?query; hooks.slack.com/services/...,
    # /webhooks/..., /bot123:...; and without its scheme, user:password@host
    re.compile(r"(://)[^\s\"'<>@]{0,200}(?:@[^\s\"'<>/@]{0,100})?(?=@)"),
    re.compile(r"(://[^\s\"'<>?]{1,200}\?)[^\s\"'<>]+"),
    re.compile(r"(://[\w.-]{0,60}hooks?[\w.-]{0,60}/|/webhooks?/|/bot(?=\d+:))[^\s\"'<>]+"),
    re.compile(r"((?<![^\s\"'(=,])[^\s\"'/@:=,;()<>]{1,64}:)[^\s\"'/@,;()<>]{1,64}(?=@\w)"),
    # A header: Authorization: Basic ...
    re.compile(r"(?i)(\bauthorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?)[^\"'\n]+"),
    # An argument of a command, which is a text or a list: --hf-token ..., '--password', '...
    re.compile(
        rf"(?i)((?<!\S)[\[(\"']{{0,3}}--?(?:\w[\w-]{{0,24}}-)?(?:{SECRET}|key)[\"']?[ =,]+[\"']?)"
        r"(?!-)[^\s\"']+"
    ),
    # A short one: curl -u ..., mysql -p..., redis-cli -a ...
    re.compile(
        r"((?:\bcurl\b.{0,100}?[\s\"']-u|\b(?:mysql\w*|mariadb|sshpass|redis-cli)\b.{0,100}?[\s\"']-[ap])"
        r"[\"', ]{0,4})"
        r"[^\s\"',]+"
    ),
    # A value with its name: token=..., "api_key": "...", password is ...; but not max_tokens=512
    re.compile(
        rf"(?i)((?<![A-Za-z0-9]){PREFIX}(?:{SECRET}|api key){BETWEEN}{WITHIN}"
        r"(?:(?:bearer|basic|token|digest)\s{1,4})?)(?!\d{1,5}\b)[^\s\"',;&<)\]}]{4,}"
    ),
    # bearer ...
    re.compile(r"(?i)(\bbearer\s{1,4})[\w.~+/=-]{8,}"),
    # In a .netrc: a line "password ...", or "login user password ..."
    re.compile(r"(?im)(^[ \t]*password[ \t]+)\S+(?=[ \t]*$)"),
    re.compile(r"(?i)(\blogin\s{1,4}\S{1,64}\s{1,4}password\s{1,4})\S+"),
    # By what it begins with: OpenAI's, Stripe's, Hugging Face's, GitHub's, GitLab's, ...; a JWT
    re.compile(
        r"()\b(?:[spr]k[-_]|hf_|gh[pousr]_|github_pat_|glpat-|A[KS]IA|xox[abeprs]-|AIza|ya29\.|"
        r"npm_|pypi-|whsec_|dop_v1_|SG\.|eyJ|gsk_|r8_|tgp_v1_|dckr_pat_|lin_api_|shp[a-z]{2}_|"
        r"sq0[a-z]{3}-|ATATT|EAA[A-Z]|key-(?=\w*\d))[\w.\-]{8,}"
    ),
    # Any other long one
    re.compile(rf"()(?<![\w/+=-]){LONG_TOKEN}(?!\w)"),
)
# A text in a line of source, or a word as the index of something: batch["image"]
LITERAL = re.compile(r"""(\[(?P<mark>["'])[A-Za-z_]+(?P=mark)\])|(["'])(?:\\.|(?!\3).)*\3""")
# A frame in a traceback, and its lines of source, which may hold a password
FRAME = re.compile(r'(?m)^([ |+]*File ".*", line \d+.*\n)(?:[ |+]*    .*(?:\n|\Z))+')


def secrets_in(environment: Mapping[str, str]) -> list[str]:
    """Return the values that no text may hold, line by line, the longest first."""
    found = set()
    for name, value in environment.items():
        if SECRET_NAME.fullmatch(name) or LOOKS_SECRET.fullmatch(value):
            found.update(value.splitlines())
        found.update(re.findall(r"://[^\s/@:]*:([^\s/]+)@", value))  # a password alone
    tell = [each for each in found if len(each) >= SHORTEST and not ORDINARY.fullmatch(each)]
    return sorted(tell, key=len, reverse=True)


def mask_secrets(text: str, secrets: list[str]) -> str:
    """Return a text with `MASK` in the place of each of `secrets`, and of what looks like one.

    Of a traceback only the places stay, without their lines of source.
    """
    text = FRAME.sub(r"\1", text)
    for secret in secrets:
        text = text.replace(secret, MASK)
    for pattern in SECRETS:
        text = pattern.sub(rf"\1{MASK}", text)
    return text


def without_literals(line: str) -> str:
    """Return a line of source without its comment, and with nothing in its quotes.

    Names that are an index stay.
    """
    return LITERAL.sub(lambda found: found[1] or "'...'", line).partition("#")[0].rstrip()
