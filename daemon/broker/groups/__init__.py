"""Consumer groups: members, subscriptions, settings, queue locks and offsets."""
