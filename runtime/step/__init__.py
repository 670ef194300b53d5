"""One training step, whatever the strategy: context, samples, optimizer, figures."""
