"""The gate: digests of what the twin predicts, which a change of structure must not touch."""
