"""Model files on disk: found, read, fetched, removed."""
