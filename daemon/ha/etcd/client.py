"""The coordination store in etcd: calls over HTTP to one of several endpoints. Any thread may call.

    the endpoint                             the call                           the next call goes to
    cannot be connected to                   goes to the next endpoint          the one that was connected to
    answers with an error                    was not done, or is unknown        the same; another if etcd has no leader
    does not answer, or half, or nonsense    unknown                            the next endpoint

Invariants:
 1. Nothing is sent twice on behalf of one call, unless etcd has said that it was not done for lack of a token.
 2. A call ends within twice its time, however slowly an answer drips, and an answer within its length.
 3. An answer of another etcd cluster than the first one is none: its revisions and epochs are another history's. So is
    one of a revision below what was known before it was asked for: etcd has lost its data, or was put back.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shmq.addresses import host_fault
from shmq.daemon.ha.election.coordination import (
    READ,
    Lease,
    Outcome,
    StoreRefused,
    StoreUnanswered,
    Transaction,
    View,
)
from shmq.daemon.ha.etcd.messages import (
    ANSWER_BYTES_MAX,
    Call,
    Failure,
    Keys,
    Read,
    Seen,
    authenticate_call,
    commit_call,
    grant_call,
    keep_alive_call,
    keys_of,
    read_commit,
    read_failure,
    read_grant,
    read_keep_alive,
    read_revoke,
    read_token,
    read_watch_line,
    revoke_call,
    watch_call,
)
from shmq.errors import ProtocolError, UsageError
from shmq.plain_file import open_plain

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

CALL_SECONDS = 1.0
WATCH_SECONDS = 5.0
_READ_BYTES = 8 << 10
_CONNECTIONS = 8
_OK = 200
_ANEW = "If it was set up anew or put back, stop every broker of the group, and start the one that led last alone"


@dataclass(frozen=True)
class EtcdOptions:
    """How etcd is reached.

    Attributes:
        endpoints: http://HOST:PORT or https://HOST:PORT, tried in this order.
        user: empty where etcd asks for none.
        ca: a file of the certificates that are trusted; empty: those of the system.
        certificate: a file with this client's, and `key` with its key; empty: it has none.
    """

    endpoints: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    certificate: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise UsageError("no endpoint of etcd is said", hint="http://HOST:2379 of every member")
        for endpoint in self.endpoints:
            _check_endpoint(endpoint)
        if bool(self.certificate) != bool(self.key):
            raise UsageError("a client's certificate for etcd needs its key, and a key its certificate")


class Etcd:
    """The coordination store of one group of brokers.

    Args:
        cluster, broker: the names of the group.

    Raises:
        UsageError: the HTTP library is absent, or a certificate cannot be read.
    """

    def __init__(
        self,
        options: EtcdOptions,
        cluster: str,
        broker: str,
        *,
        call_seconds: float = CALL_SECONDS,
        watch_seconds: float = WATCH_SECONDS,
    ) -> None:
        try:
            import urllib3
        except ImportError as error:
            raise UsageError("etcd is spoken to over urllib3", hint="pip install 'shmq[ha]'") from error
        self._http = urllib3
        self._options = options
        self._keys: Keys = keys_of(cluster, broker)
        self._call_seconds, self._watch_seconds = call_seconds, watch_seconds
        self._pool = urllib3.PoolManager(maxsize=_CONNECTIONS, ssl_context=_tls(options))
        self._lock = threading.Lock()
        self._first = 0  # the endpoint that is asked first
        self._token = ""
        self._cluster = 0  # the one that answered first
        self._revision = 0  # the highest one that it has answered with

    def close(self) -> None:
        """End the connections that are not in use."""
        self._pool.clear()

    def commit(self, transaction: Transaction) -> Outcome:
        known = self._revision
        body = self._done(self._ask(commit_call(self._keys, transaction)))
        with _understood():
            outcome = self._known(read_commit(self._keys, body))
        assert isinstance(outcome, Outcome)
        revision = outcome.view.revision
        if revision < known:
            raise StoreUnanswered(f"etcd is at revision {revision} and was at {known}: its data were lost", hint=_ANEW)
        with self._lock:
            self._revision = max(self._revision, revision)
        return outcome

    def grant(self, ttl_ms: int) -> Lease:
        body = self._done(self._ask(grant_call(ttl_ms)))
        with _understood():
            return self._known_lease(read_grant(body))

    def keep_alive(self, lease: int) -> Lease:
        body = self._done(self._ask(keep_alive_call(lease)))
        with _understood():
            read = read_keep_alive(lease, body)
        if isinstance(read, Failure):
            raise _error(read)
        return self._known_lease(read)

    def revoke(self, lease: int) -> Lease:
        answer = self._ask(revoke_call(lease))
        if isinstance(answer, Failure) and answer.is_unknown_lease:
            return Lease(lease, 0)
        body = self._done(answer)
        with _understood():
            return self._known_lease(read_revoke(lease, body))

    def watch(self, revision: int) -> View:
        self._wait(watch_call(self._keys, revision))
        return self.commit(READ.transaction).view

    # Answers

    def _done(self, answer: bytes | Failure) -> bytes:
        if isinstance(answer, Failure):
            raise _error(answer)
        return answer

    def _known(self, read: Read) -> Outcome | Lease:
        with self._lock:
            self._cluster = self._cluster or read.cluster
            if read.cluster == self._cluster:
                return read.answer
        raise StoreUnanswered(
            f"etcd cluster {read.cluster:x} answers, {self._cluster:x} was the first to do so",
            hint=f"are the endpoints of one cluster? {_ANEW}",
        )

    def _known_lease(self, read: Read) -> Lease:
        lease = self._known(read)
        assert isinstance(lease, Lease)
        return lease

    # Calls

    def _ask(self, call: Call) -> bytes | Failure:
        deadline = time.monotonic() + self._call_seconds
        if not self._options.user:
            return self._post(call, "", deadline)
        token = self._token or self._authenticate(deadline)
        answer = self._post(call, token, deadline)
        if isinstance(answer, Failure) and answer.is_token_refused:
            answer = self._post(call, self._authenticate(deadline), deadline)
        return answer

    def _authenticate(self, deadline: float) -> str:
        answer = self._post(authenticate_call(self._options.user, self._options.password), "", deadline)
        if isinstance(answer, Failure):
            raise StoreRefused(f"etcd does not accept user {self._options.user}: {answer.reason}")
        with _understood():
            self._token = read_token(answer)
        return self._token

    def _post(self, call: Call, token: str, deadline: float) -> bytes | Failure:
        endpoint, response = self._send(call, token, deadline)
        with self._answer_of(endpoint, response):
            chunks, size = [], 0
            for chunk in response.stream(_READ_BYTES):
                chunks.append(chunk)
                size += len(chunk)
                if size > ANSWER_BYTES_MAX or time.monotonic() > deadline:
                    response.close()
                    self._go_on_behind(endpoint)
                    raise StoreUnanswered(f"etcd at {endpoint} goes on answering after {size} bytes")
        body = b"".join(chunks)
        if response.status == _OK:
            return body
        failure = read_failure(response.status, body)
        if not failure.was_not_done:
            self._go_on_behind(endpoint)
        return failure

    def _wait(self, call: Call) -> None:
        deadline = time.monotonic() + self._watch_seconds
        with contextlib.suppress(StoreUnanswered, StoreRefused):  # what there is now is read all the same
            endpoint, response = self._send(call, self._token, deadline)
            try:
                if response.status == _OK:
                    self._read_watch(endpoint, response, deadline)
            finally:
                response.close()

    def _read_watch(self, endpoint: str, response: BaseHTTPResponse, deadline: float) -> None:
        rest = b""
        with self._answer_of(endpoint, response, is_silence_wrong=False):
            for chunk in response.stream(_READ_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                if any(read_watch_line(line) is not Seen.NOTHING for line in lines):
                    return
                if len(rest) > ANSWER_BYTES_MAX or time.monotonic() > deadline:
                    return

    def _send(self, call: Call, token: str, deadline: float) -> tuple[str, BaseHTTPResponse]:
        """Post to the first endpoint that can be connected to; the answer is to be read."""
        http, endpoints = self._http, self._options.endpoints
        headers = {"Content-Type": "application/json"} | ({"Authorization": token} if token else {})
        reasons = []
        first = self._first
        for number in range(len(endpoints)):
            endpoint = endpoints[(first + number) % len(endpoints)]
            left = max(deadline - time.monotonic(), 0.001)
            timeout = http.Timeout(total=left, connect=min(left, self._call_seconds) / (len(endpoints) - number))
            try:
                response = self._pool.request(
                    "POST", endpoint + call.path, body=call.body, headers=headers, timeout=timeout,
                    retries=False, redirect=False, preload_content=False,
                )  # fmt: skip
            except (http.exceptions.NewConnectionError, http.exceptions.ConnectTimeoutError) as error:
                reasons.append(f"{endpoint}: {error}")
            except http.exceptions.HTTPError as error:
                self._go_on_behind(endpoint)
                raise StoreUnanswered(f"etcd at {endpoint} does not answer: {error}") from error
            else:
                self._first = (first + number) % len(endpoints)
                return endpoint, response
        raise StoreRefused(f"no endpoint of etcd can be reached: {'; '.join(reasons)}", hint="does etcd run there?")

    @contextlib.contextmanager
    def _answer_of(self, endpoint: str, response: Any, *, is_silence_wrong: bool = True) -> Iterator[None]:
        try:
            yield
        except self._http.exceptions.ReadTimeoutError as error:
            response.close()
            if is_silence_wrong:
                self._go_on_behind(endpoint)
                raise StoreUnanswered(f"etcd at {endpoint} does not answer to the end: {error}") from error
        except self._http.exceptions.HTTPError as error:
            response.close()
            self._go_on_behind(endpoint)
            raise StoreUnanswered(f"etcd at {endpoint} does not answer to the end: {error}") from error

    def _go_on_behind(self, endpoint: str) -> None:
        endpoints = self._options.endpoints
        self._first = (endpoints.index(endpoint) + 1) % len(endpoints)


def _error(failure: Failure) -> StoreRefused | StoreUnanswered:
    return (StoreRefused if failure.was_not_done else StoreUnanswered)(f"etcd: {failure.reason}")


@contextlib.contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except ProtocolError as error:
        raise StoreUnanswered(str(error), hint=error.hint) from error


def _check_endpoint(endpoint: str) -> None:
    try:
        url = urlsplit(endpoint)
        is_one = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 0) > 0
        is_one = is_one and not (url.path or url.query or url.fragment or url.username)
        is_one = is_one and not host_fault(url.hostname or "")
    except ValueError:
        is_one = False
    if not is_one:
        raise UsageError(f"{endpoint[:80]!r} is no endpoint of etcd", hint="http://HOST:2379 or https://HOST:2379")


def _tls(options: EtcdOptions) -> ssl.SSLContext | None:
    if not any(endpoint.startswith("https:") for endpoint in options.endpoints):
        return None
    try:
        for path in filter(None, (options.ca, options.certificate, options.key)):
            os.close(open_plain(path, os.O_RDONLY, follows_links=True))  # OpenSSL waits for a FIFO
        context = ssl.create_default_context(cafile=options.ca or None)
        if options.certificate:
            context.load_cert_chain(options.certificate, options.key, password="")
    except (OSError, ssl.SSLError, ValueError) as error:
        raise UsageError(f"the certificates for etcd cannot be used: {error}") from error
    return context
