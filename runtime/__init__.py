"""The real thing: 4D-parallel training on torch.distributed. Not written yet; see the CHANGELOG."""
