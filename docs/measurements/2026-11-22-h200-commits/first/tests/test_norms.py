import pytest
import torch
from warpnorm import fallback, layer_norm, rms_norm

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@cuda
@pytest.mark.parametrize("cols", [1024, 3000, 4096])
def test_forward_is_the_definition(cols):
    x = torch.randn(256, cols, device="cuda", dtype=torch.bfloat16)
    weight, bias = torch.randn(2, cols, device="cuda")
    torch.testing.assert_close(rms_norm(x, weight), fallback.rms_norm(x, weight, 1e-6))
    torch.testing.assert_close(layer_norm(x, weight, bias), fallback.layer_norm(x, weight, bias, 1e-6))
