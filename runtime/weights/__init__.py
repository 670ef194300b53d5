"""What a rank holds of the full model's parameters, and where in memory."""
