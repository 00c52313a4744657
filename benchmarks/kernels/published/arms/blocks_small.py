"""Blocks of small and mixed models, as TorchBench has: recurrent, recommendation, image to image, speech."""

from collections.abc import Mapping
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.kernels.published.arms.blocks_common import Block, Chain, Given, Layer, Size, activations
from benchmarks.kernels.published.arms.blocks_vision import conv


class Gru(Layer):
    """A gated recurrent unit, written out over the steps of a short sequence (batch, steps, columns)."""

    def __init__(self, columns: int, hidden: int, steps: int) -> None:
        super().__init__()
        self.steps, self.hidden = steps, hidden
        self.into, self.again = nn.Linear(columns, 3 * hidden), nn.Linear(hidden, 3 * hidden)

    def forward(self, x: Tensor) -> Tensor:
        given = self.into(x)
        state = torch.zeros_like(given[:, 0, : self.hidden])
        states = []
        for step in range(self.steps):
            reset, update, new = given[:, step].chunk(3, -1)
            old_reset, old_update, old_new = self.again(state).chunk(3, -1)
            update = torch.sigmoid(update + old_update)
            candidate = torch.tanh(new + torch.sigmoid(reset + old_reset) * old_new)
            state = candidate + update * (state - candidate)
            states.append(state)
        return torch.stack(states, 1)


class Dlrm(Layer):
    """Embeddings, a bottom MLP, the products of all pairs of features, a top MLP."""

    lower: Tensor

    def __init__(self, dense: int, sparse: int, rows: int, columns: int, inner: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, columns)
        self.bottom = Chain(nn.Linear(dense, inner), nn.ReLU(), nn.Linear(inner, columns), nn.ReLU())
        pairs = (sparse + 1) * sparse // 2
        self.top = Chain(nn.Linear(columns + pairs, 2 * inner), nn.ReLU(), nn.Linear(2 * inner, inner), nn.ReLU())
        self.out = nn.Linear(inner, 1)
        self.register_buffer("lower", torch.tril_indices(sparse + 1, sparse + 1, -1))

    def forward(self, dense: Tensor, chosen: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        features = torch.cat((bottom[:, None].to(self.table.weight.dtype), self.table(chosen)), 1)
        products = features @ features.transpose(1, 2)
        pairs = products[:, self.lower[0], self.lower[1]]
        found: Tensor = self.out(self.top(torch.cat((bottom, pairs), 1)))
        return found


class UnetLevel(Layer):
    """A level of a U-Net: two convolutions, down, two more, up, and two over both."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.before, self.below = self._double(channels, channels), self._double(channels, 2 * channels)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.after = self._double(2 * channels, channels)

    @staticmethod
    def _double(into: int, out: int) -> Chain:
        return Chain(*conv(into, out, 3), nn.ReLU(), *conv(out, out, 3), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        kept = self.before(x)
        lower = self.below(F.max_pool2d(kept, 2))
        return self.after(torch.cat((kept, self.up(lower)), 1))


class Autoencoder(Layer):
    """DeepRecommender: an MLP with SELU from the items to a code and back."""

    def __init__(self, items: int, hidden: int, code: int) -> None:
        super().__init__()
        widths = (items, hidden, hidden, code, hidden, hidden, items)
        self.layers = nn.ModuleList(nn.Linear(into, out) for into, out in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.selu(layer(x))
        return x


class SuperResolution(Layer):
    """EDSR: residual pairs of convolutions, then an image of twice the side."""

    def __init__(self, channels: int, pairs: int) -> None:
        super().__init__()
        self.pairs = nn.ModuleList(
            Chain(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1))
            for _ in range(pairs)
        )
        self.up, self.out = nn.Conv2d(channels, 4 * channels, 3, padding=1), nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for pair in self.pairs:
            y = y + pair(y)
        found: Tensor = self.out(F.pixel_shuffle(self.up(x + y), 2))
        return found


class Demucs(Layer):
    """An encoder level of Demucs: a strided convolution over the samples, ReLU, 1x1 convolution, GLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.strided = nn.Conv1d(channels, 2 * channels, 8, stride=4)
        self.mixed = nn.Conv1d(2 * channels, 4 * channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.mixed(F.relu(self.strided(x))), 1)


def _dcgan(channels: int) -> Chain:
    """Two levels of the generator: transposed convolutions that double the side, batch norms, ReLU."""
    half, quarter = channels // 2, channels // 4
    return Chain(
        nn.ConvTranspose2d(channels, half, 4, 2, 1, bias=False),
        nn.BatchNorm2d(half),
        nn.ReLU(),
        nn.ConvTranspose2d(half, quarter, 4, 2, 1, bias=False),
        nn.BatchNorm2d(quarter),
        nn.ReLU(),
    )


BLOCKS: Mapping[str, Block] = {
    "unet": Block(
        "U-Net, the second level: 128 channels, 128 x 128 (arXiv 1505.04597); 8 images",
        UnetLevel,
        activations((128,), 8, 128, 128, 128),
        activations((4,), 4, 4, 8, 8),
    ),
    "dlrm": Block(
        "DLRM as in MLPerf, with one table of 100,000 rows and a layer less in each MLP: 13 dense and 26 sparse "
        "features, 128 columns, 512 inner (arXiv 1906.00091); 8192 samples",
        Dlrm,
        Size((13, 26, 100_000, 128, 512), (Given((8192, 13)), Given((8192, 26), 100_000))),
        Size((3, 4, 50, 8, 16), (Given((8, 3)), Given((8, 4), 50))),
    ),
    "gru": Block(
        "GRU encoder, 8 steps: 620 columns, 1000 hidden (arXiv 1406.1078); 1024 sequences",
        Gru,
        activations((620, 1000, 8), 1024, 8, 620),
        activations((16, 16, 3), 4, 3, 16),
    ),
    "deeprecommender": Block(
        "DeepRecommender: 17768 items, 512 hidden, a code of 1024 (arXiv 1708.01715); 1024 users",
        Autoencoder,
        activations((17768, 512, 1024), 1024, 17768),
        activations((33, 16, 24), 4, 33),
    ),
    "edsr": Block(
        "EDSR baseline, three of its residual pairs and the upsampling: 64 channels, 96 x 96 (arXiv 1707.02921); "
        "16 images",
        SuperResolution,
        activations((64, 3), 16, 64, 96, 96),
        activations((4, 1), 4, 4, 8, 8),
    ),
    "demucs": Block(
        "Demucs, the second encoder level: 64 channels, kernel 8, stride 4 (arXiv 1911.13254); 16 x 44,100 samples",
        Demucs,
        activations((64,), 16, 64, 44100),
        activations((4,), 4, 4, 64),
    ),
    "dcgan": Block(
        "DCGAN, two levels of the generator: 512 channels of 8 x 8 to 128 of 32 x 32 (arXiv 1511.06434); 256 images",
        _dcgan,
        activations((512,), 256, 512, 8, 8),
        activations((8,), 4, 8, 4, 4),
    ),
}
