"""Records what stock clients and servers write, for tests/golden; run by hand when a client has a new release."""
