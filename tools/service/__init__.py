"""Commands that start and stop brokers and name servers, and name them."""
