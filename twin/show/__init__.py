"""Answers on a terminal: rich tables, or one JSON object for programs.

`console` holds what all share; each other module shows one kind of answer, and a command loads that one alone.
"""
