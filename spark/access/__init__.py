"""The ways to a broker: what planning and reading ask of it, over mapped memory or over TCP."""
