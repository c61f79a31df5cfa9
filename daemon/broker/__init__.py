"""The broker's decisions as pure logic: groups, subscriptions, administration. No socket, no clock, no segment."""
