"""What failures cost: useful time of a run of weeks, and how often to write checkpoints."""
