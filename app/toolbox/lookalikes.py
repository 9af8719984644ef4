"""What a person takes a text for: what is seen of it, which names look alike, which label asks for a secret. Pure.

MCP lets no server ask for a secret in a form. A label asks for one where it holds a word or phrase that names one:

- as whole words, however they are joined (`api key`, `apiKey`, `a-p-i_key`), in the singular or plural; the longest
  also inside a word (`userpassword`);
- unless the next word says that something about it is wanted (`token limit`, `password length`, `secret name`);
- `token` alone, unless the word before says that it is a piece of text, a place in a list or a coin (`max token`,
  `page token`); `tokens` alone is a number of them;
- `pin`, `pass`, `cookie` and the like where nothing but `your`, `new`, `4-digit`, `user` and such stands beside it, so
  that a map has pins, a mountain a pass, and a jar cookies.

Letters count as what they look like. An IBAN or a passport's number is no secret: people hand it to those they deal
with.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from typing import Literal, NamedTuple, TypeAlias

from app.domain.jsontypes import Json, JsonObject
from app.toolbox.cleaning import clean_text

Format: TypeAlias = Literal["email", "uri", "date", "date-time"]

EXAMPLES: dict[Format, str] = {
    "email": "an e-mail address, such as ann@example.com",
    "uri": "an address, such as https://example.com/page",
    "date": "a date, such as 2026-01-31",
    "date-time": "a time with its zone, such as 2026-01-31T09:30:00Z",
}
"""What looks like each format, for a sentence that says so."""

_EMAIL = re.compile(r"[^\s@<>,;]{1,64}@[^\s@.<>,;]{1,63}(?:\.[^\s@.<>,;]{1,63}){1,9}")
_URI = re.compile(
    r'[A-Za-z][A-Za-z0-9+.-]*://[^\s<>"\\/?#]+(?:[/?#][^\s<>"\\]*)?|[Uu][Rr][Nn]:[^\s<>"\\:]+:[^\s<>"\\]+'
)
_NUMERAL = re.compile(r"[+-]?[0-9]{1,64}(?:\.[0-9]{1,64})?(?:[eE][+-]?[0-9]{1,4})?")
_WHOLES = range(-(2**63), 2**64)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(r"([0-9-]{10})[Tt]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})")

_BLANKS = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U000e0100-\U000e01ef]")
"""Letters and marks that leave nothing to see."""
_SELECTORS = re.compile("[\ufe00-\ufe0f]")
_MARKS = re.compile("[\u0300-\u036f]")
_LETTERS = str.maketrans(
    "АВЕЗІЈКМНОРСТУХЅԌԚԜӀаверкмностухѕіјһԁɡԛԝӏьѵгп" + "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧαβγεηικνορτυχωϲϳ" + "ıɩɑłøđħ",
    "ABE3IJKMHOPCTYXSGQWlabepkmhoctyxsijhdgqwlbvrn" + "ABEZHIKMNOPTYXabyenikvoptuxwcj" + "iialodh",
)
"""Cyrillic, Greek and a few Latin letters that pass for plain Latin ones."""
_STROKES = str.maketrans("01i|", "olll")
"""In small letters, where I and l are one stroke, as 1 is."""
_HUMPS = re.compile("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W_]+")
_NUMBERED = re.compile(r"(?<=[^\W\d_])[0-9]+$")


def visible_text(text: str) -> str:
    """Return a text without the characters that nobody sees."""
    return _BLANKS.sub("", clean_text(text))


def visible_line(text: Json, limit: int) -> str | None:
    """Return what is seen of a text in one line of at most so many characters; None where it is none or nothing is."""
    if not isinstance(text, str):
        return None
    return _cut(" ".join(visible_text(text[: 8 * limit]).split()), limit) or None


def visible_passage(text: Json, limit: int) -> str | None:
    """The same for a text that may have lines and tabs."""
    return _cut(visible_text(text[: 8 * limit]).strip(), limit) or None if isinstance(text, str) else None


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def number_from(value: Json) -> int | float | None:
    """Read a number, or a text that is one; None for all else, what is not finite, and whole ones of over 64 bits."""
    if isinstance(value, str):
        text = value.strip()
        if not _NUMERAL.fullmatch(text):
            return None
        value = int(text) if text.lstrip("+-").isdigit() else float(text)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value if isinstance(value, float) or value in _WHOLES else None


def looks_like(text: str, form: Format) -> bool:
    """Tell whether a text is written in a format, without asking whether what it names exists."""
    if form == "email":
        return _EMAIL.fullmatch(text) is not None
    if form == "uri":
        return _URI.fullmatch(text) is not None
    with suppress(ValueError):
        if form == "date":
            return bool(_DAY.fullmatch(text) and date.fromisoformat(text))
        moment = _MOMENT.fullmatch(text)
        # The fraction may have more digits than Python keeps.
        return bool(moment and datetime.fromisoformat(f"{moment[1]}T{moment[2]}{moment[3].upper()}"))
    return False


def fault_of_names(names: Iterable[str], limit: int) -> str | None:
    """Say what is wrong with a form that has fields of these names, after "it"; None for nothing."""
    looks: set[str] = set()
    for name in names:
        if not name or len(name) > limit or " ".join(visible_text(name).split()) != name:
            return "has a field without a name, or with one that is too long or holds what nobody sees"
        if name == "__proto__":
            return "has a field whose name means something else to browsers"
        if look_of(name) in looks:
            return "has fields whose names look alike"
        looks.add(look_of(name))
    return None


def deceive(texts: Collection[str]) -> bool:
    """Tell whether one of these is another, or is another with letters of other scripts in it."""
    return len({text.translate(_LETTERS) for text in texts}) < len(texts)


def distinct_titles(titles: Mapping[str, str]) -> dict[str, str]:
    """Make the titles of values distinct: those that several have are told with their values."""
    count = Counter(titles.values())
    return {value: title if count[title] == 1 else f"{title} ({value})" for value, title in titles.items()}


def shown_choices(titles: Mapping[str, str], word: str) -> JsonObject:
    """Write what can be chosen as MCP does: plainly, or with titles under `word`."""
    if list(titles) == list(titles.values()):
        return {"type": "string", "enum": list(titles)}
    return {word: [{"const": value, "title": title} for value, title in titles.items()]}


def look_of(text: str) -> str:
    """Return a form that is the same for texts which a person takes for the same."""
    return _folded(_latin(text))


def asks_for_secret(label: str) -> bool:
    """Tell whether a name or title asks for a password, a key, a code or the like."""
    parts = _WORD.findall(_HUMPS.sub(" ", _latin(label)))
    words = [_folded(_NUMBERED.sub("", part)) for part in parts]
    return _asks_alone(words) or any(not _is_harmless(words, found) for found in _found(words))


def _latin(text: str) -> str:
    return _unmarked(_BLANKS.sub("", _SELECTORS.sub("", text))).translate(_LETTERS)


def _folded(text: str) -> str:
    return _unmarked(text.casefold()).translate(_STROKES)


def _unmarked(text: str) -> str:
    """Take accents off, but not what makes another letter in scripts where marks do that."""
    return unicodedata.normalize("NFKC", _MARKS.sub("", unicodedata.normalize("NFKD", text)))


class _Found(NamedTuple):
    phrase: str
    start: int
    """The first word of it."""
    end: int
    """The word after it."""


def _found(words: Sequence[str]) -> Iterable[_Found]:
    for start, word in enumerate(words):
        yield from (_Found(phrase, start, start + 1) for phrase in _INSIDE if phrase in word)
        joined = ""
        for end in range(start, len(words)):
            joined += words[end]
            if len(joined) > _LONGEST:
                break
            if joined in _SECRETS:
                yield _Found(joined, start, end + 1)


def _is_harmless(words: Sequence[str], found: _Found) -> bool:
    after = words[found.end] if found.end < len(words) else None
    if after in _ABOUT:
        return True
    before = words[found.start - 1] if found.start else None
    return found.phrase == _TOKEN and (after in _OF_COINS or before in _PLAIN_TOKENS)


def _asks_alone(words: Sequence[str]) -> bool:
    left = [word for word in words if word not in _BESIDE and not word.isdigit()]
    return len(left) == 1 and left[0] in _ALONE


def _folded_words(text: str) -> frozenset[str]:
    return frozenset(look_of(word) for word in text.split())


_TOKEN = look_of("token")

_INSIDE = _folded_words(
    "password passwd passphrase passwort kennwort wachtwoord contraseña motdepasse парол 密码 密碼 パスワード 비밀번호 "
    "apikey secretkey privatekey accesskey clientsecret accesstoken authtoken bearertoken refreshtoken seedphrase"
)
"""Found inside words as well; no word of another meaning holds one."""

_SINGULAR = _folded_words(
    # what people log in with
    "pwd passcode passkey secret credential pincode pinnumber mnemonic bearer securityanswer "
    "authorizationheader cookieheader sessioncookie logincookie "
    "senha haslo losenord salasana sifre heslo jelszo adgangskode passord zugangsdaten 暗証番号 "
    "otp totp onetimecode onetimepin 2fa mfa 2facode mfacode twofactorcode verificationcode securitycode "
    "authenticationcode authenticatorcode authcode authorizationcode smscode logincode accesscode resetcode "
    "digitcode backupcode recoverycode recoverykey recoveryphrase secretphrase walletseed "
    # what programs do
    "apitoken sessiontoken securitytoken authenticationtoken authkey accountkey masterkey servicekey encryptionkey "
    "signingkey sshkey walletkey jwt "
    # what people pay with, and are known by
    "cvv cvc cardnumber cardno cardnum creditcard debitcard kreditkarte kreditkartennummer ssn socialsecurity",
)
_SECRETS = frozenset({_TOKEN, *_INSIDE, *_SINGULAR, *(f"{phrase}s" for phrase in _INSIDE | _SINGULAR)})
_LONGEST = max(map(len, _SECRETS))

_ABOUT = _folded_words(
    "limit limits count length size budget type types kind name names policy expiry expiration expires lifetime ttl "
    "age cost rate window rotation strength format method provider manager management label title description "
    "reset usage version scope scopes per santa agent"
)
"""After a secret's word, these say that the secret itself is not wanted."""
_OF_COINS = _folded_words("id symbol address price amount supply decimals standard contract pair balance in out")
_PLAIN_TOKENS = _folded_words(
    "max maximum min minimum stop eos bos pad mask unk special input output prompt completion per "
    "page next continuation cancellation sync syntax design from to base quote nft erc governance"
)
_ALONE = _folded_words("pin pass cookie authorization parola ключ")
_BESIDE = _folded_words(
    "a an the your my our enter type please new old current confirm repeat user account card bank security login "
    "unlock sim atm device wallet digit digits of for db database admin root smtp mail wifi"
)
