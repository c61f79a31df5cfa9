"""The console's pages: each module reads one subject, and hands plain values to a template."""
