"""Checks that a topic exists before a command that would make it reads or writes it.

Attaching creates a topic where the broker allows that, so that consumers may come before producers. A consumer of a
misspelt name would wait for ever, without a word, at a topic that stays behind.

    the topic                                what happens
    exists                                   nothing
    is new                                   stderr says so, with the nearest name; attaching creates it
    is new, one slip away from another       refused, unless --create
    is new, but its end was asked for        refused

Two slips are too many for a refusal: `orders-eu` and `orders-us` may well be two topics. A send is never refused,
as a topic begins with its first message; stderr names the topic that is one slip away.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from shmq.errors import ShmqError
from shmq.message import check_topic, missing_topic
from shmq.tools.broker.view import meant_topic, topic_not_found
from shmq.tools.command import Call

if TYPE_CHECKING:
    import shmq

create_option = click.option("--create", is_flag=True, help="Make TOPIC, although it looks like another misspelt.")


def expect_topic(call: Call, connection: shmq.Connection, topic: str, *, must_exist: bool, create: bool) -> None:
    """Tell that a topic is new, or refuse it; see the table above.

    Raises:
        TopicNotFound: it does not exist, and either has to, or looks like a misspelt one.
        InvalidName: no topic can have this name.
    """
    check_topic(topic)
    if connection._figures().has_topic(topic):
        return
    names = connection._figures().topic_names()
    if must_exist:
        raise topic_not_found(topic, connection.broker_name, names)
    if not create and (meant := meant_topic(topic, names, slips_max=1)) is not None:
        then = f'did you mean "{meant}"? If not, --create makes "{topic}" and waits for its messages'
        raise missing_topic(topic, f'on broker "{connection.broker_name}"', (), then)
    perhaps = None if create else meant_topic(topic, names)
    meant = f'; did you mean "{perhaps}"?' if perhaps is not None else ""
    call.terminal.say(f'topic "{topic}" is new: nothing has been sent to it{meant}')
    if create and call.is_remote:
        connection.admin.create_topic(topic)  # a reader over TCP makes none


def suggest_topic(call: Call, connection: shmq.Connection, topic: str) -> None:
    """Before a send to a new topic, name the one that may have been meant; say nothing without the right to look."""
    check_topic(topic)
    with contextlib.suppress(ShmqError):  # an account that may only send, or no broker: the send will say so
        if connection._figures().has_topic(topic):
            return
        meant = meant_topic(topic, connection._figures().topic_names(), slips_max=1)
        if meant is not None:
            call.terminal.say(f'topic "{topic}" is new; did you mean "{meant}"?')
