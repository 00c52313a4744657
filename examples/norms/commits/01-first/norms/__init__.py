"""RMSNorm and LayerNorm: plain torch, and Triton for GPUs."""
