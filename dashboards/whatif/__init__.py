"""What-if: a job as a form, simulated on change in a process of its own that can be ended."""
