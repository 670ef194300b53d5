"""Processes: where they run, how they meet and end together."""
