"""The model from its description: what every strategy computes, however it cuts it."""
