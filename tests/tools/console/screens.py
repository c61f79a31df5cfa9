"""Every screen of the console, by its address, and Debian's Chromium that draws it."""

from __future__ import annotations

import shutil
from typing import Final

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
SCREENS = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "create-topic": "/create-topic",
    "change-topic": "/topics/orders/change",
    "delete-topic": "/topics/orders/delete",
    "send": "/topics/orders/send",
    "groups": "/groups",
    "group": "/groups/billing",
    "reset": "/groups/billing/reset?topic=orders&to=begin",
    "delete-group": "/groups/billing/delete",
    "messages": "/messages?topic=orders",
    "message": "/messages/orders/{id}",
    "send-again": "/messages/orders/{id}/resend",
    "tail": "/messages/tail?topic=orders",
    "dead-letters": "/dead-letters",
    "letters": "/dead-letters/billing",
    "resend": "/dead-letters/billing/resend?all=1",
    "purge": "/dead-letters/billing/purge",
    "timers": "/timers",
    "transactions": "/transactions",
    "trace": "/trace?id={id}",
    "processes": "/processes",
    "broker": "/broker",
}


def path_of(name: str, message_id: str) -> str:
    """Return the address of a screen; where it shows a message, of this one."""
    return SCREENS[name].format(id=message_id)
