"""One sentence that says what this broker is in the election of its master; `shmq cluster status` and top show it."""

from shmq.tools.observe.snapshot import Election
from shmq.tools.terminal.quantity import age_text


def election_text(election: Election) -> str:
    """Say this broker's part, how fresh a leader's lease is, and which stores can be elected."""
    text = f"elected over etcd: this broker is {election.role}"
    if election.role == "leading":
        text += f" ({election.why}), its lease was renewed {age_text(election.lease_age or 0.0)} ago"
    elif election.reason:
        text += f": {election.reason}"
    stores = [store[:8] + " (here)" * (store == election.store) for store in election.in_sync]
    return f"{text}; in sync: {', '.join(stores) or 'nobody'}"
