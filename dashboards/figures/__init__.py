"""Figures as pure functions: tables and numbers in, a Plotly figure out."""
