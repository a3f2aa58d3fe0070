"""Measures a running OpenAI-compatible server from outside, over HTTP alone. Knows no engine and no setting."""
