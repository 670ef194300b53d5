"""Runs of `fourfold train`: what they wrote of themselves, read strictly, while they write."""
