"""Sizes that every strategy has in common: what AdamW in mixed precision keeps and moves."""

FP32_BYTES = 4
OPTIMIZER_BYTES = 12
"""Of an element: fp32 master weight and two moments."""
ADAM_BYTES_PER_ELEMENT = 28
"""Read gradient, master weight and two moments; write the last three, all fp32."""
