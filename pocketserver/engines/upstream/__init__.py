"""Somebody else's engine as ours: any server that speaks OpenAI's API."""
