"""Pages of what waits at the broker: messages for a time of their own, and transactions for their end.

Only the broker knows these, so it is asked, over a control connection that is closed again. What it says is bounded:
the thousand that are due first, the oldest transactions; their count is of all.

    /timers           take one back before it is due
    /transactions     let a producer be asked, commit, roll back
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shmq.errors import TransactionError, UsageError
from shmq.protocol.system_topics import transaction as wire
from shmq.tools.console.rendering import Renderer, done
from shmq.tools.messages.timer_command import find_timer, pending_timers
from shmq.tools.messages.tx_command import ask_producer, end_transaction, find_transaction, open_transactions

if TYPE_CHECKING:
    import shmq
    from shmq.client.wire_shm.control import ControlClient

TIMERS_MAX = 1000
_ENDS = {"commit": wire.COMMIT, "rollback": wire.ROLLBACK}


class WaitingPages:
    """Timers and transactions."""

    def __init__(
        self,
        control: Callable[[str], AbstractContextManager[ControlClient]],
        connect: Callable[[], shmq.Connection],
        renderer: Renderer,
    ) -> None:
        self._control = control
        self._connect = connect
        self._renderer = renderer

    def routes(self) -> list[Route]:
        """Return where they are."""
        return [
            Route("/timers", self.timers),
            Route("/timers/{message}/cancel", self.ask_cancel, methods=["GET"]),
            Route("/timers/{message}/cancel", self.cancel, methods=["POST"]),
            Route("/transactions", self.transactions),
            Route("/transactions/{transaction}", self.transaction, methods=["GET"]),
            Route("/transactions/{transaction}", self.settle, methods=["POST"]),
        ]

    def timers(self, request: Request) -> Response:
        """List what waits for its time, what is due first."""
        with self._control("which messages wait") as control:
            found = pending_timers(control, TIMERS_MAX)
        return self._renderer.page(request, "timers.html", found=found)

    def ask_cancel(self, request: Request) -> Response:
        """Show which message would be taken back, and ask."""
        with self._control("which messages wait") as control:
            timer = find_timer(pending_timers(control, TIMERS_MAX), request.path_params["message"])
        return self._renderer.page(request, "cancel_timer.html", timer=timer)

    def cancel(self, request: Request) -> Response:
        """Take it back."""
        with self._control("which messages wait") as control:
            timer = find_timer(pending_timers(control, TIMERS_MAX), request.path_params["message"])
        with self._connect() as mq:
            mq.recall(timer.handle)
        return done("/timers", "cancelled")

    def transactions(self, request: Request) -> Response:
        """List open transactions, the oldest first."""
        with self._control("which transactions are open") as control:
            found = open_transactions(control)
        return self._renderer.page(request, "transactions.html", found=found)

    def transaction(self, request: Request) -> Response:
        """Show one, and ask how it is to end."""
        with self._control("which transactions are open") as control:
            entry = find_transaction(open_transactions(control), request.path_params["transaction"])
        return self._renderer.page(request, "transaction.html", entry=entry)

    def settle(self, request: Request) -> Response:
        """End it, or let the broker ask its producer."""
        wanted = request.state.form.get("end", "")
        with self._control("which transactions are open") as control:
            entry = find_transaction(open_transactions(control), request.path_params["transaction"])
            if wanted == "check":
                if not ask_producer(control, entry):
                    raise TransactionError(
                        f'no member of producer group "{entry.group}" answers questions',
                        hint="start its producer, or decide: commit or roll back",
                    )
                return done("/transactions", "asked")
            if wanted not in _ENDS:
                raise UsageError(f"{wanted!r:.40} ends no transaction", hint="commit or rollback")
            end_transaction(control, entry, _ENDS[wanted])
        return done("/transactions", "committed" if wanted == "commit" else "rolled-back")
