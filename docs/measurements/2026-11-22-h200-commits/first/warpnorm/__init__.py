from warpnorm.api import layer_norm, layer_norm_backward, rms_norm, rms_norm_backward

__all__ = ["layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward"]
