"""Makes the archives of a release: built and looked at, and tried where neither compiler nor checkout is."""
