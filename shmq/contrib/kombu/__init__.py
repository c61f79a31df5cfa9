"""A transport for kombu, with which Celery runs on shmq: `broker_url = "shmq://"`.

    import shmq.contrib.kombu                      # makes the name known to kombu
    app = Celery(broker_url="shmq://")             # or shmq://NAME, shmq:///DIRECTORY, shmq+rocketmq://HOST:9876

    durable queue      topic `kombu-NAME`, which workers pop from as one group of that name
    transient queue    (auto-delete, exclusive or not durable) places in the logs of the exchanges it is bound to
    exchange's log     topic `kombu-x-NAME`, which transient queues read

    sources.py     threads that pop from durable queues, and that read the logs of exchanges
    channel.py     declaring, publishing, delivering, settling
    transport.py   connections, and the address in a URL

Invariants:
 1. A message is hidden while a worker has it in hand, and the hiding is prolonged three times in its length: another
    worker gets it when its own has died, at most `visibility_timeout` seconds later, and never because it takes long or
    waits for its time.
 2. No more messages than the prefetch count are in hand, those in the inbox included.
 3. A transient queue has what was published after its binding, and is gone with its connection.
 4. What a channel has in hand when it closes comes again at once.
 5. A forked child opens a connection of its own.

Options (`broker_transport_options`): `url` (as for `shmq.connect`, before the transport's own address),
`visibility_timeout` (seconds, 60), `topic_prefix` ("kombu-"), `attempts_max` (deliveries before a message goes to the
dead letters; the group's own number unless given).
"""

from shmq.errors import UsageError

try:
    from kombu.transport import TRANSPORT_ALIASES
except ModuleNotFoundError as error:
    raise UsageError("shmq.contrib.kombu needs kombu", hint="pip install 'shmq[celery]'") from error

from shmq.contrib.kombu.channel import Channel
from shmq.contrib.kombu.transport import NAME, Transport

__all__ = ["Channel", "Transport"]

TRANSPORT_ALIASES[NAME] = "shmq.contrib.kombu:Transport"
