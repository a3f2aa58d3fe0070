"""What answers: a real model, a scripted device, another server. Nothing here knows HTTP servers or profiles."""
