"""Who a person is: OAuth with GitHub, and OpenID Connect with any other provider.

Authlib speaks the protocols: the code flow with PKCE, and signatures of identity tokens.  It is imported where somebody
signs in: pages ask for the names of providers alone.
"""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from service.errors import BadInput, ServiceError, Unavailable
from service.settings import settings

if TYPE_CHECKING:
    from authlib.integrations.httpx_client import OAuth2Client

_TIMEOUT_S = 10.0
_ALGORITHMS = ["RS256", "RS384", "RS512", "ES256", "ES384", "PS256", "EdDSA"]
_LEEWAY_S = 60
_MAX_LOGIN = 120


class SignInFailed(ServiceError):
    """The provider did not say who somebody is."""

    status = 502


@dataclass(frozen=True)
class Identity:
    """A person as the provider names them; `subject` never changes."""

    issuer: str
    subject: str
    login: str


@dataclass(frozen=True)
class Flow:
    """What must be remembered of a sign-in between leaving for the provider and coming back."""

    state: str
    verifier: str
    nonce: str

    @classmethod
    def new(cls) -> "Flow":
        return cls(secrets.token_urlsafe(24), secrets.token_urlsafe(48), secrets.token_urlsafe(24))


class IdentityProvider(Protocol):
    """A place where people have accounts."""

    @property
    def name(self) -> str:
        """In the addresses of sign-in."""
        ...

    @property
    def title(self) -> str:
        """For people."""
        ...

    @property
    def client_secret(self) -> str:
        """What only the provider and this server know."""
        ...

    def address(self, flow: Flow, callback: str) -> str:
        """The URL that a browser is sent to."""
        ...

    def identity(self, flow: Flow, callback: str, code: str) -> Identity:
        """Who came back with this code.  Raises SignInFailed."""
        ...


@dataclass(frozen=True)
class GitHubSignIn:
    """Sign-in with a GitHub account, by an OAuth app without any permission."""

    client_id: str
    client_secret: str
    url: str
    api: str
    name: str = "github"
    title: str = "GitHub"

    def address(self, flow: Flow, callback: str) -> str:
        with self._client(callback) as client:
            return _leave(client, f"{self.url}/login/oauth/authorize", flow)

    def identity(self, flow: Flow, callback: str, code: str) -> Identity:
        with _failures(self.title), self._client(callback) as client:
            client.fetch_token(
                f"{self.url}/login/oauth/access_token",
                code=code,
                code_verifier=flow.verifier,
                headers={"Accept": "application/json"},
            )
            user = client.get(f"{self.api}/user", headers={"Accept": "application/vnd.github+json"})
            user.raise_for_status()
            answer = user.json()
            return Identity(self.url, str(answer["id"]), str(answer["login"])[:_MAX_LOGIN])

    def _client(self, callback: str) -> "OAuth2Client":
        return _client(self.client_id, self.client_secret, callback)


@dataclass(frozen=True)
class OpenIdSignIn:
    """Sign-in with a provider of OpenID Connect."""

    issuer: str
    client_id: str
    client_secret: str
    name: str = "oidc"

    @property
    def title(self) -> str:
        return urlsplit(self.issuer).hostname or self.issuer

    def address(self, flow: Flow, callback: str) -> str:
        with _failures(self.title), self._client(callback) as client:
            return _leave(client, self._described(client)["authorization_endpoint"], flow, nonce=flow.nonce)

    def identity(self, flow: Flow, callback: str, code: str) -> Identity:
        with _failures(self.title), self._client(callback) as client:
            described = self._described(client)
            token = client.fetch_token(described["token_endpoint"], code=code, code_verifier=flow.verifier)
            keys = client.request("GET", described["jwks_uri"], withhold_token=True)
            keys.raise_for_status()
            claims = self._checked(token["id_token"], keys.json(), flow.nonce)
            return Identity(self.issuer, str(claims["sub"]), _login(claims))

    def _client(self, callback: str) -> "OAuth2Client":
        return _client(self.client_id, self.client_secret, callback, scope="openid profile email")

    def _described(self, client: "OAuth2Client") -> Mapping[str, Any]:
        answer = client.request(
            "GET", f"{self.issuer.rstrip('/')}/.well-known/openid-configuration", withhold_token=True
        )
        answer.raise_for_status()
        described: dict[str, Any] = answer.json()
        if described["issuer"] != self.issuer:
            raise SignInFailed(
                f"KERNELWATCH_OIDC_ISSUER must be {described['issuer']!r}, as the provider names itself."
            )
        return described

    def _checked(self, id_token: str, keys: Any, nonce: str) -> Mapping[str, Any]:
        """The claims of an identity token that this provider signed for us and for this flow."""
        from joserfc import jwk, jwt

        claims = jwt.decode(id_token, jwk.KeySet.import_key_set(keys), algorithms=_ALGORITHMS).claims
        jwt.JWTClaimsRegistry(
            leeway=_LEEWAY_S,
            iss={"essential": True, "value": self.issuer},
            aud={"essential": True, "value": self.client_id},
            sub={"essential": True},
            exp={"essential": True},
            nonce={"essential": True, "value": nonce},
        ).validate(claims)
        return claims


def _login(claims: Mapping[str, Any]) -> str:
    """A name by which people know the person: an address that the provider has verified, else the subject.

    The prefix keeps a subject from passing for a login of GitHub or for an address.
    """
    verified = claims.get("email") if claims.get("email_verified") is True else None
    return str(verified or f"oidc:{claims['sub']}")[:_MAX_LOGIN]


def _client(client_id: str, secret: str, callback: str, **more: str) -> "OAuth2Client":
    from authlib.integrations.httpx_client import OAuth2Client

    usual = {"redirect_uri": callback, "code_challenge_method": "S256", "timeout": _TIMEOUT_S}
    return OAuth2Client(client_id, secret, **usual, **more)


def _leave(client: "OAuth2Client", endpoint: str, flow: Flow, **more: str) -> str:
    url, _ = client.create_authorization_url(endpoint, state=flow.state, code_verifier=flow.verifier, **more)
    return str(url)


@contextmanager
def _failures(title: str) -> Iterator[None]:
    import httpx2
    from authlib.common.errors import AuthlibBaseError
    from joserfc.errors import JoseError

    try:
        yield
    except (httpx2.HTTPError, AuthlibBaseError, JoseError, KeyError, ValueError) as error:
        why = getattr(error, "description", "") or str(error) or type(error).__name__
        raise SignInFailed(f"{title} did not confirm who you are: {why}. Sign in again.") from error


def providers() -> tuple[IdentityProvider, ...]:
    """The providers that the settings name."""
    here = settings()
    providers: list[IdentityProvider] = []
    if here.github_client_id and here.github_client_secret:
        secret = here.github_client_secret.get_secret_value()
        providers.append(GitHubSignIn(here.github_client_id, secret, here.github_url.rstrip("/"), here.github_api))
    if here.oidc_issuer and here.oidc_client_id and here.oidc_client_secret:
        providers.append(
            OpenIdSignIn(here.oidc_issuer, here.oidc_client_id, here.oidc_client_secret.get_secret_value())
        )
    return tuple(providers)


def provider(name: str) -> IdentityProvider:
    """The provider of this name.  Raises Unavailable if there is none at all, and BadInput for another name."""
    by_name = {provider.name: provider for provider in providers()}
    if not by_name:
        raise Unavailable(
            "No provider is set up to sign in with. On the machine of the server, run `kernelwatch person sign-in` and "
            "open the link that it prints. For other people set KERNELWATCH_GITHUB_CLIENT_ID and "
            "KERNELWATCH_GITHUB_CLIENT_SECRET, or KERNELWATCH_OIDC_ISSUER, KERNELWATCH_OIDC_CLIENT_ID and "
            "KERNELWATCH_OIDC_CLIENT_SECRET; then restart."
        )
    if name not in by_name:
        raise BadInput(f"There is no sign-in with {name}; use {' or '.join(by_name)}.")
    return by_name[name]
