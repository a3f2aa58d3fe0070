"""The bytes of each API: a body becomes a GenerationRequest, events become an answer."""
