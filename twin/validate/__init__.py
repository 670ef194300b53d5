"""Predictions beside what was measured: published runs, and tables of one's own."""
