"""A GitHub and a provider of OpenID Connect on which people sign in, with the checks that real ones make."""

import base64
import hashlib
import time
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, urlencode

from joserfc import jwk, jwt
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tests.fakes.contracts.contract import contract

CLIENT, SECRET = "kernelwatch", "a-secret-of-the-client"


@dataclass
class FakeIdentity:
    """Whoever is `person` signs in at once; `permissions` are those of repositories, by repository and login."""

    person: dict[str, Any] = field(default_factory=lambda: {"id": 7, "login": "ada"})
    permissions: dict[tuple[str, str], str] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)  # in place of true ones
    down: bool = False
    asked: int = 0  # for permissions
    issuer: str = ""
    _key: jwk.RSAKey = field(default_factory=cache(lambda: jwk.RSAKey.generate_key(2048)))
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/login/oauth/authorize", self._authorize),
                Route("/login/oauth/access_token", self._token, methods=["POST"]),
                Route("/user", self._user),
                Route("/repos/{owner}/{name}/collaborators/{login}/permission", self._permission),
                Route("/.well-known/openid-configuration", self._describe),
                Route("/jwks", self._jwks),
            ]
        )

    async def _authorize(self, request: Request) -> Response:
        query = dict(request.query_params)
        assert query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256"
        code = f"code-{len(self._codes)}"
        self._codes[code] = query
        back = urlencode({"code": code, "state": query["state"]})
        return RedirectResponse(f"{query['redirect_uri']}?{back}")

    async def _token(self, request: Request) -> Response:
        sent = dict(parse_qsl((await request.body()).decode()))
        basic = base64.b64decode(request.headers.get("authorization", "Basic ").partition(" ")[2]).decode()
        begun = self._codes.pop(sent.get("code", ""), None)
        digest = hashlib.sha256(sent.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        secret_fits = basic == f"{CLIENT}:{SECRET}" or sent.get("client_secret") == SECRET
        if begun is None or not secret_fits or begun["code_challenge"] != challenge:
            return JSONResponse({"error": "invalid_grant", "error_description": "the code is not valid"}, 400)
        return JSONResponse({"access_token": "of-a-person", "token_type": "bearer", "id_token": self._signed(begun)})

    def _signed(self, begun: dict[str, str]) -> str:
        now = int(time.time())
        true = {"iss": self.issuer, "aud": CLIENT, "sub": str(self.person["id"]), "iat": now, "exp": now + 300}
        true |= {"nonce": begun.get("nonce"), "email": f"{self.person['login']}@example.org", "email_verified": True}
        return jwt.encode({"alg": "RS256", "kid": self._key.thumbprint()}, true | self.claims, self._key)

    async def _user(self, request: Request) -> Response:
        assert request.headers["authorization"] == "Bearer of-a-person"
        return JSONResponse(contract("github").answer("GET", "/user", 200, self.person))

    async def _permission(self, request: Request) -> Response:
        self.asked += 1
        named = request.path_params
        role = self.permissions.get((f"{named['owner']}/{named['name']}", named["login"]))
        if self.down:
            return JSONResponse({"message": "Server Error"}, 502)
        if role is None:
            return JSONResponse({"message": "Not Found"}, 404)
        plain = {"maintain": "write", "triage": "read"}.get(role, role)
        said = {"permission": plain, "role_name": role}
        return JSONResponse(contract("github").answer("GET", request.url.path, 200, said))

    async def _describe(self, _: Request) -> Response:
        of = self.issuer
        return JSONResponse(
            {
                "issuer": of,
                "authorization_endpoint": f"{of}/login/oauth/authorize",
                "token_endpoint": f"{of}/login/oauth/access_token",
                "jwks_uri": f"{of}/jwks",
            }
        )

    async def _jwks(self, _: Request) -> Response:
        public = self._key.as_dict(private=False) | {"kid": self._key.thumbprint(), "use": "sig"}
        return JSONResponse({"keys": [public]})
