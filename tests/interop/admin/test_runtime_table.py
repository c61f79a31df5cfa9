"""The broker's runtime table has the words of both stock releases, in their form."""

import json
import re

from tests.interop.peers.wire import Wire
from tests.interop.target import Target

GET_BROKER_RUNTIME_INFO = 28
# Rates of the last ten seconds, minute and ten minutes: a stock broker leaves out those that it has no samples for yet.
RATES = re.compile(r"(?:\d+\.\d+(?:E-?\d+)?)? (?:\d+\.\d+(?:E-?\d+)?)? (?:\d+\.\d+(?:E-?\d+)?)?")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE]-?\d+)?")


def table_of(target: Target) -> dict[str, str]:
    with Wire(target.broker_address) as wire:
        answer = wire.ask(GET_BROKER_RUNTIME_INFO, {})
    assert answer is not None and answer.code == 0
    return dict(json.loads(answer.body)["table"])


def form_of(name: str, value: str) -> str:
    if name.startswith(("put", "get")) and name.endswith("Tps"):
        return "rates" if RATES.fullmatch(value) else value
    return NUMBER.sub("#", value)


def test_each_word_has_the_form_that_stock_brokers_give_it(ours: Target, stock_4: Target, stock_5: Target) -> None:
    mine = table_of(ours)
    differences = []
    for stock in (stock_4, stock_5):
        for name, value in table_of(stock).items():
            if name == "putMessageDistributeTime" and value == "null":
                continue  # before its first minute is over
            if name == "brokerVersionDesc" or name.startswith("commitLogDiskRatio_/"):
                continue  # the version's own name; one that names a directory
            if form_of(name, mine.get(name, "absent")) != form_of(name, value):
                differences.append((stock.kind, name, value, mine.get(name, "absent")))
    assert not differences
