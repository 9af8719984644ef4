"""A network for what dials: names and addresses lead where a test says, and nothing real is dialled but on loopback.

`FakeNet.resolve` and `FakeNet.dial` are what `Egress` takes in place of the system's resolver and sockets. With a
`port` every address leads to that one on loopback; without one, each connection is answered from `replies`.
"""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias, cast

import httpcore2
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from typing_extensions import override

PUBLIC = "192.175.48.6"
_BODY = b'{"jsonrpc":"2.0","id":1,"result":{}}'
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_BODY) + _BODY

Answers: TypeAlias = Sequence[Sequence[str] | Exception]


class _Stream(httpcore2.AsyncNetworkStream):
    """A connection that looks as if it were to the address, and takes any TLS handshake for done."""

    def __init__(self, net: "FakeNet", address: tuple[str, int], under: httpcore2.AsyncNetworkStream | None) -> None:
        self._net = net
        self._address = address
        self._under = under
        self._waiting = b""

    @override
    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._under is not None:
            return await self._under.read(max_bytes, timeout)
        if b"\r\n\r\n" not in self._waiting:
            return b""
        self._net.requests.append(self._waiting)
        self._waiting = b""
        replies = self._net.replies
        return replies.pop(0) if len(replies) > 1 else replies[0]

    @override
    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._under is not None:
            await self._under.write(buffer, timeout)
        self._waiting += buffer

    @override
    async def aclose(self) -> None:
        self._net.closed += 1
        if self._under is not None:
            await self._under.aclose()

    @override
    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        self._net.tls_names.append(server_hostname)
        if self._net.has_tls and self._under is not None:
            return await self._under.start_tls(ssl_context, server_hostname, timeout)
        return self

    @override
    def get_extra_info(self, info: str) -> Any:
        seen = {"client_addr": (self._net.own_address, 50000), "server_addr": self._address}
        if info in seen and self._net.own_address is not None:
            return seen[info]
        return None if self._under is None or info == "ssl_object" else self._under.get_extra_info(info)


@dataclass
class FakeNet:
    """Where everything leads, and what was asked of it."""

    answers: Answers = ((PUBLIC,),)
    """For one look-up after another, the last one for all that follow."""
    port: int | None = None
    replies: list[bytes] = field(default_factory=lambda: [OK])
    """For one request after another, the last one for all that follow."""
    dead: Mapping[str, Exception] = field(default_factory=dict[str, Exception])
    """What dialling an address fails with."""
    own_address: str | None = "198.51.100.77"
    """What connections seem to come from; None for what the sockets say, of both of their ends."""
    has_tls: bool = False
    """TLS is spoken, not taken for done."""
    asked: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    dialled: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    shares: list[float] = field(default_factory=list[float])
    """How many seconds each dialling was given."""
    tls_names: list[str | None] = field(default_factory=list[str | None])
    requests: list[bytes] = field(default_factory=list[bytes])
    """Their heads, and bodies as far as they came with them; of scripted connections."""
    closed: int = 0

    def resolve(self, name: str, port: int) -> Sequence[str]:
        answer = self.answers[min(len(self.asked), len(self.answers) - 1)]
        self.asked.append((name, port))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def dial(self, address: str, port: int, seconds: float) -> httpcore2.AsyncNetworkStream:
        self.dialled.append((address, port))
        self.shares.append(seconds)
        if address in self.dead:
            raise self.dead[address]
        under: httpcore2.AsyncNetworkStream | None = None
        if self.port is not None:
            backend = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())
            under = await backend.connect_tcp("127.0.0.1", self.port, seconds)
        return _Stream(self, (address, port), under)


@dataclass(frozen=True)
class Authority:
    """A certificate authority of the test's own."""

    ca_file: str
    key: ec.EllipticCurvePrivateKey
    name: x509.Name
    folder: Path

    def server_context(self, host: str) -> ssl.SSLContext:
        """A server's side of TLS, with a certificate for a host name."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = _certificate(x509.Name([]), self.name, key).add_extension(names, critical=True)
        signed = builder.add_extension(usage, critical=False).sign(self.key, hashes.SHA256())
        file = self.folder / f"{host}.pem"
        file.write_bytes(_pem(signed) + _pem_of_key(key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def make_authority(folder: Path) -> Authority:
    """Make an authority whose certificate is in a file of the folder."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Test authority")])
    builder = _certificate(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    file = folder / "authority.pem"
    file.write_bytes(_pem(builder.sign(key, hashes.SHA256())))
    return Authority(str(file), key, name, folder)


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    lasting = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    return lasting.serial_number(x509.random_serial_number())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, encryption)
