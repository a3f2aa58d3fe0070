"""A scripted, deterministic engine for people who write clients."""
