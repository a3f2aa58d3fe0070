"""Engines as replicas of a Ray Serve application: how they are deployed, chosen and asked. Needs the extra `ray`."""
