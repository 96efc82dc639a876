# SPDX-License-Identifier: Apache-2.0
"""What conversions.py measures of PyTorch: the plainest calls that give the same numbers, into memory that is
there before; results of the last step go to `out`."""

import time

import torch

VERSION = torch.__version__
torch.set_num_threads(1)
BLOCK = 32


def rows(tokens, heads, dim, kind):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(tokens, heads, dim, generator=generator, dtype=torch.float32).to(kind)


class Work:
    """One operation on rows [token][head][dim] of `size` bytes in 16 bits, or what they became before."""

    def __init__(self, name, size, heads, dim):
        tokens = size // (heads * dim * 2) // 256 * 256
        self.payload = tokens * heads * dim * 2
        self.run = getattr(self, name)
        kind = torch.bfloat16 if "fp8" in name or name == "amx" else torch.float16
        self.setup(name, rows(tokens, heads, dim, kind))

    def setup(self, name, x):
        tokens, heads, dim = x.shape
        self.x = x
        if name == "blocks_of_heads":
            self.out = torch.empty(tokens // BLOCK, heads, BLOCK, dim, dtype=x.dtype)
        elif name == "transposed":
            self.out = torch.empty(heads, dim, tokens, dtype=x.dtype)
        elif name == "amx":
            self.out = torch.empty(tokens // BLOCK, heads, BLOCK // 16, dim // 2, 16, 2, dtype=x.dtype)
        elif name == "to_fp8":
            self.out = torch.empty(x.shape, dtype=torch.float8_e4m3fn)
        elif name == "from_fp8":
            self.scale = x.float().abs().amax(-1, keepdim=True) / 448
            self.codes = (x.float() / self.scale).to(torch.float8_e4m3fn)
            self.out = torch.empty_like(x)
        elif name in ("from_q8_0", "to_rotated_q8_0"):
            blocks = x.float().view(tokens, heads, dim // 32, 32)
            self.scale = (blocks.abs().amax(-1, keepdim=True) / 127).half()
            self.codes = torch.round(blocks / self.scale).to(torch.int8)
            self.out = torch.empty_like(x) if name == "from_q8_0" else torch.empty_like(self.codes)
            matrix = torch.ones(1, 1)
            while matrix.shape[0] < 64:
                matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
            self.matrix = matrix / 8
        else:
            self.out = torch.empty(x.shape, dtype=torch.uint8)

    def rate(self):
        begin = time.perf_counter()
        self.run()
        return self.payload / (time.perf_counter() - begin) / 1e9

    def blocks_of_heads(self):
        tokens, heads, dim = self.x.shape
        self.out.copy_(self.x.view(tokens // BLOCK, BLOCK, heads, dim).permute(0, 2, 1, 3))

    def transposed(self):
        self.out.copy_(self.x.permute(1, 2, 0))

    def amx(self):
        tokens, heads, dim = self.x.shape
        groups = self.x.view(tokens // BLOCK, BLOCK // 16, 16, heads, dim // 2, 2)
        self.out.copy_(groups.permute(0, 3, 1, 4, 2, 5))

    def to_fp8(self):
        x = self.x.float()
        self.scale = x.abs().amax(-1, keepdim=True) / 448
        self.out.copy_((x * (1 / self.scale)).clamp(-448, 448))

    def from_fp8(self):
        self.out.copy_(self.codes.float() * self.scale)

    def from_q8_0(self):
        self.out.view(self.codes.shape).copy_(self.codes.float() * self.scale)

    def to_u8(self):
        x = self.x.float()
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        self.scale = (high - low) / 255
        self.zero = -low / self.scale
        self.out.copy_(torch.round(x * (1 / self.scale) + self.zero).clamp(0, 255))

    def to_rotated_q8_0(self):
        tokens, heads, dim = self.x.shape
        x = (self.x.float().view(-1, 64) @ self.matrix).view(tokens, heads, dim // 32, 32)
        largest = x.abs().amax(-1, keepdim=True)
        self.scale = (largest / 127).half()
        self.out.copy_(torch.round(x * (127 / largest)))
