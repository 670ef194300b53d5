"""What a run leaves behind besides checkpoints: its directory, metrics, lines on the terminal."""
