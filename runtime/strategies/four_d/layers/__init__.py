"""Layers of a GPT in 4D: each knows its shards, names its ops, and computes its own gradients."""
