"""A small OpenID Connect issuer on a real socket: discovery, keys that rotate, ID
tokens, device flow, refresh.
"""

import base64
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT_ID = "client-lib"
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
Answer = tuple[int, dict[str, Any]]


def oidc_table(url: str, **keys: Any) -> str:
    """The table of the users file that has a server take the tokens of this issuer."""
    lines = [
        f"{key} = {json.dumps(value)}"
        for key, value in {"issuer": url, "audience": CLIENT_ID, **keys}.items()
    ]
    return "\n".join(["", "[oidc]", *lines, ""])


class Issuer:
    """`claims` are those of the one user. `decision`: `allowed`, or the error
    that ends the device flow.
    """

    def __init__(self, url: str) -> None:
        self.url, self.asked = url, Counter[str]()
        self.claims: dict[str, Any] = {"preferred_username": "zoe", "groups": ["vision"]}
        self.decision = "allowed"
        self.pending = 0
        """Polls that are answered with authorization_pending first."""
        self.busy = 0
        """Requests for tokens that are answered with 503 first."""
        self.lifetime_s = 300.0
        self.device_s = 60.0
        self.refresh: set[str] = set()
        """Valid refresh tokens, each of which works once."""
        self.device_flow = True
        self.keys: dict[str, rsa.RSAPrivateKey] = {}
        self.rotate()

    def rotate(self) -> None:
        """Sign with a new key from now on, and publish it alone."""
        self.keys = {secrets.token_hex(4): rsa.generate_private_key(65537, 2048)}

    def token(self, **claims: Any) -> str:
        """A signed token; a claim of None is left out."""
        (kid, key), now = next(iter(self.keys.items())), time.time()
        usual = {
            "iss": self.url,
            "aud": CLIENT_ID,
            "sub": "1",
            "iat": now,
            "exp": now + self.lifetime_s,
        }
        payload = {
            name: value
            for name, value in (usual | self.claims | claims).items()
            if value is not None
        }
        return jwt.encode(payload, key, "RS256", {"kid": kid})

    def answer(self, path: str, form: dict[str, str]) -> Answer:
        self.asked[path] += 1
        if path == "/.well-known/openid-configuration":
            ends = {
                "token_endpoint": "/token",
                "device_authorization_endpoint": "/device",
                "jwks_uri": "/keys",
            }
            ends["revocation_endpoint"] = "/revoke"
            known = {
                "issuer": self.url,
                "scopes_supported": ["openid", "profile", "groups", "offline_access"],
            }
            if not self.device_flow:
                del ends["device_authorization_endpoint"]
            return 200, known | {name: self.url + end for name, end in ends.items()}
        if path == "/keys":
            return 200, {"keys": [self._jwk(kid) for kid in self.keys]}
        if path == "/device":
            assert form == {"client_id": CLIENT_ID, "scope": "openid profile groups offline_access"}
            place = {"user_code": "WDJB-MJHT", "verification_uri": f"{self.url}/activate"}
            return 200, {"device_code": "d", "expires_in": self.device_s, "interval": 0.01, **place}
        if path == "/revoke":
            self.refresh.discard(form["token"])
            return 200, {}
        if path == "/token" and self.busy:
            self.busy -= 1
            return 503, {"error": "temporarily_unavailable"}
        if path == "/token":
            return self._tokens(form)
        return 404, {}

    def _tokens(self, form: dict[str, str]) -> Answer:
        assert form["client_id"] == CLIENT_ID
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refresh:
                return 400, {
                    "error": "invalid_grant",
                    "error_description": "the refresh token was used before",
                }
            self.refresh.discard(form["refresh_token"])
        else:
            assert (form["grant_type"], form["device_code"]) == (DEVICE, "d")
            self.pending -= 1
            if self.pending >= 0:
                return 400, {"error": "authorization_pending"}
            if self.decision != "allowed":
                return 400, {"error": self.decision}
        self.refresh.add(new := secrets.token_hex(8))
        return 200, {
            "id_token": self.token(),
            "access_token": "opaque",
            "refresh_token": new,
            "expires_in": 1,
        }

    def _jwk(self, kid: str) -> dict[str, str]:
        numbers = self.keys[kid].public_key().public_numbers()
        return {
            "kid": kid,
            "kty": "RSA",
            "alg": "RS256",
            "use": "sig",
            "n": _base64(numbers.n),
            "e": _base64(numbers.e),
        }


def _base64(number: int) -> str:
    return (
        base64.urlsafe_b64encode(number.to_bytes((number.bit_length() + 7) // 8, "big"))
        .decode()
        .rstrip("=")
    )


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            status, answer = issuer.answer(
                self.path, {key: value[0] for key, value in parse_qs(body).items()}
            )
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer = Issuer(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
