"""The simulator around the engine: device presets, faults on the wire, captured requests, scenarios, control."""
