"""A minute on one device: every path that a job may take there, tried on a small model of its kind."""
