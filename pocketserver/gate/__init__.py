"""Who may come in: Host, peer, Origin, key, size and rate. It knows nothing of chat."""
