"""API keys in force: who a client is, what it may use, and how much of it.

A key is found by its SHA-256, so neither the file nor this process keeps it. Limits are buckets
that hold a minute's worth and fill continuously: a quiet key may use a minute's worth at once.
Tokens are charged by the prompt's estimate when a request is let in, and settled when it ends.
"""

from __future__ import annotations

import hmac
import math
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec
from xxhash import xxh3_64_intdigest

from infctl.profile.keyfile import when

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from infctl.core.request import Request
    from infctl.profile.keyfile import Key
    from infctl.router.board import Board
    from infctl.router.proxy import Exchange
    from infctl.router.wire import Head

_CREDENTIALS = (b"authorization", b"x-api-key")
_MULTIPART = b"multipart/"
CLIENT_LEFT = 499
_MINUTE_S = 60.0


class Refusal(msgspec.Struct, frozen=True):
    """Why a request is not let in; `retry_after_s` is whole seconds, `tenant` whose it is where a
    limit of theirs is the reason."""

    status: int
    message: str
    retry_after_s: int | None = None
    tenant: str = ""


class Bucket:
    """At most a minute's worth, filled continuously; a debt is worked off before more is let in.

    The whole state is the time at which it will be full again (the generic cell rate algorithm):
    looking changes nothing, and taking `n` moves that time by `n` times the seconds one takes.
    """

    __slots__ = ("_each_s", "_full_at")

    def __init__(self, per_minute: int, now: float) -> None:
        self._each_s = _MINUTE_S / per_minute
        self._full_at = now

    def resize(self, per_minute: int, now: float) -> None:
        """Another limit; what is used stays used."""
        used = self.used(now)
        self._each_s = _MINUTE_S / per_minute
        self._full_at = now + used * self._each_s

    def used(self, now: float) -> float:
        """What is taken and not filled up again."""
        return max(self._full_at - now, 0.0) / self._each_s

    def wait_s(self, need: float, now: float) -> float:
        """Seconds until `need` is there, 0 if it is. More than a minute's worth is let in once
        the bucket is full, or it never would be."""
        need_s = need * self._each_s
        wait = self._full_at - now + (need_s if need_s < _MINUTE_S else _MINUTE_S) - _MINUTE_S
        return wait if wait > 0.0 else 0.0

    def take(self, amount: float, now: float) -> None:
        """Take out so much, or give it back where negative."""
        start = self._full_at if self._full_at > now else now
        self._full_at = start + amount * self._each_s


class Account:
    """One key: what it may do, and what it has used."""

    __slots__ = ("concurrent", "digest", "expires", "models", "name", "others", "priority",
                 "requests", "running", "slot", "taken", "tenant", "tokens")  # fmt: skip

    def __init__(self, key: Key, priority: int, now: float) -> None:
        self.running = 0
        self.slot = -1
        self.taken = [0.0, 0.0]
        self.others = (0.0, 0.0, 0.0)
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.update(key, priority, now)

    def update(self, key: Key, priority: int, now: float) -> None:
        """Take over what the file says now; what was used stays used."""
        self.name, self.priority = key.name, priority
        self.digest = bytes.fromhex(key.sha256)
        self.tenant = key.tenant or key.name
        self.models = None if key.models is None else frozenset(key.models)
        self.expires = math.inf if key.expires is None else when(key.expires)
        self.concurrent = key.concurrent_requests
        self.requests = _bucket(self.requests, key.requests_per_minute, now)
        self.tokens = _bucket(self.tokens, key.tokens_per_minute, now)

    def may_use(self, model: str) -> bool:
        """Whether the key covers a model, by the name clients ask for."""
        return self.models is None or model in self.models

    def busy(self, now: float) -> Refusal | None:
        """Why not even another request can be let in now, whatever it asks for."""
        if self.concurrent is not None and self.running + self.others[2] >= self.concurrent:
            message = (
                f"this key has {self.running + round(self.others[2])} requests running already"
            )
            return Refusal(429, message, 1, self.tenant)
        if self.requests is not None and (wait_s := self.requests.wait_s(1.0, now)):
            message = "this key's requests per minute are used up"
            return Refusal(429, message, math.ceil(wait_s), self.tenant)
        return None

    def charge(self, requests: float, tokens: float, now: float) -> None:
        """Take so much from what the key may use, or give it back where negative."""
        if self.requests is not None:
            self.requests.take(requests, now)
        if self.tokens is not None:
            self.tokens.take(tokens, now)

    def seen(self, found: tuple[float, float, float], now: float) -> None:
        """What other workers have taken in all: requests, tokens, and what is running."""
        requests, tokens, _ = self.others
        self.others = found
        if found[0] >= requests:  # else a worker ended, and started to count anew
            self.charge(found[0] - requests, found[1] - tokens, now)


def _bucket(known: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    if known is None:
        return Bucket(per_minute, now)
    known.resize(per_minute, now)
    return known


class Keyring:
    """The keys of one router. `wall` is epoch seconds, for expiry; `now` is monotonic. What its
    workers let in is shared on a `board` with the columns requests, tokens, running."""

    def __init__(self, wall: Callable[[], float], board: Board | None = None) -> None:
        self._wall = wall
        self._board = board
        self._accounts: dict[bytes, Account] = {}
        self._grants: dict[str, tuple[Account, float]] = {}

    def replace(self, keys: Sequence[tuple[Key, int]], now: float) -> None:
        """Another set of keys, each with its priority's index. A key of the same name goes on
        with what it has used, also under a new digest."""
        known = {account.name: account for account in self._accounts.values()}
        accounts = {}
        for key, priority in keys:
            account = known.get(key.name)
            if account is None:
                account = Account(key, priority, now)
            else:
                account.update(key, priority, now)
            accounts[account.digest] = account
        self._accounts = accounts
        if self._board is not None:
            self._place(self._board)

    def _place(self, board: Board) -> None:
        """Give every account its slot on the board."""
        placed = list(self._accounts.values())[: board.slots_max]
        board.own[:] = 0.0
        for account in self._accounts.values():
            account.slot = -1
        for slot, account in enumerate(placed):
            account.slot = slot
            self._tell(account)
        board.identify([xxh3_64_intdigest(a.name.encode()) or 1 for a in placed])

    def _tell(self, account: Account) -> None:
        if self._board is not None and account.slot >= 0:
            self._board.own[:, account.slot] = (*account.taken, account.running)

    def look(self, now: float) -> None:
        """Take in what other workers have let in."""
        if self._board is None:
            return
        found = self._board.sum()
        for account in self._accounts.values():
            if 0 <= account.slot < found.shape[1]:
                requests, tokens, running = found[:, account.slot].tolist()
                if (requests, tokens, running) != account.others:
                    account.seen((requests, tokens, running), now)

    def check(self, head: Head, now: float) -> Account | Refusal:
        """Whose request this is, from its head alone, or why it is refused."""
        given = _given(head)
        if not given:
            return Refusal(401, "an API key is needed: Authorization: Bearer KEY")
        digest = sha256(given).digest()
        account = self._accounts.get(digest)
        if account is None or not hmac.compare_digest(account.digest, digest):
            return Refusal(401, "there is no such API key")
        if self._wall() >= account.expires:
            return Refusal(401, "this API key has expired")
        return account.busy(now) or account

    def admit(self, account: Account, head: Head, request: Request, now: float) -> Refusal | None:
        """Let a request in and charge it, or say why not. `request.prompt_tokens` is an estimate.

        Which model a form asks for is not read, so a key with a list of models may not send one.
        """
        if not account.may_use(request.model):
            message = f"this key may not use the model `{request.model}`"
            return Refusal(403, message, tenant=account.tenant)
        kind = head.get(b"content-type")
        if account.models is not None and kind is not None and kind.lower().startswith(_MULTIPART):
            return Refusal(403, "this key is limited to certain models, and may not send forms")
        tokens = account.tokens
        if tokens is not None:
            wait_s = tokens.wait_s(request.prompt_tokens, now)
            if wait_s:
                message = "this key's tokens per minute are used up"
                return Refusal(429, message, math.ceil(wait_s), account.tenant)
        account.charge(1.0, request.prompt_tokens, now)
        self._took(account, 1.0, request.prompt_tokens, 1)
        request.tenant = account.tenant
        request.priority = max(request.priority, account.priority)  # less urgent if it says so
        self._grants[request.id] = (account, request.prompt_tokens)
        return None

    def settle(self, exchange: Exchange, now: float) -> None:
        """A request is over, however it ended: charge what it took in truth."""
        grant = self._grants.pop(exchange.request.id, None)
        if grant is None:
            return
        account, charged = grant
        more = _used(exchange, charged) - charged
        account.charge(0.0, more, now)
        self._took(account, 0.0, more, -1)

    def _took(self, account: Account, requests: float, tokens: float, running: int) -> None:
        account.running += running
        account.taken[0] += requests
        account.taken[1] += tokens
        self._tell(account)


def hide(head: Head) -> None:
    """Forget the credentials of a request that is let in: no engine and no log is to see them."""
    head.headers = [pair for pair in head.headers if pair[0] not in _CREDENTIALS]
    for name in _CREDENTIALS:
        head.fields.pop(name, None)


def _given(head: Head) -> bytes | None:
    value = head.fields.get(b"authorization")
    if value is not None:
        if value[:7] == b"Bearer " and value[7:8] > b" " < value[-1:]:
            return value[7:]
        scheme, _, key = value.partition(b" ")
        if scheme.lower() == b"bearer" and key.strip():
            return key.strip()
    return head.get(b"x-api-key")


def _used(exchange: Exchange, estimate: float) -> float:
    """Tokens a request took: by the engine's usage, else the estimate and an event a token."""
    usage = exchange.usage
    if usage is not None:
        return (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
    left = exchange.status == CLIENT_LEFT and exchange.endpoint is not None
    answered = bool(exchange.first_byte) and exchange.status < 300
    return estimate + exchange.events if left or answered else 0.0
