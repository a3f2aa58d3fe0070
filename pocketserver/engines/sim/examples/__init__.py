"""Values that a JSON Schema admits, and texts that a regular expression matches, from a seed and without a model."""
