"""Owns a KV pool on a GPU in PyTorch's memory, for "cascade-lab gpu-check".

It uses package measure's protocol: JSON lines, one on standard output at the start,
then one for each line of standard input, until that ends.

    python3 torch_owner.py --device 0 --bytes 1073741824

It times the attention of one decode step: flash_attn's kernel over paged KV if it
is installed, otherwise PyTorch's own. The answer names the kernel.
"""

import argparse
import json
import sys

HEADS, KV_HEADS, HEAD = 32, 8, 128  # of Llama 3.1 8B
PAGE = 256  # tokens
STRIDE = 0x5851F42D4C957F2D  # of package measure's pattern


def arguments(argv):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--device", type=int, default=0, help="index of the GPU, as nvidia-smi has it")
    p.add_argument("--bytes", type=int, required=True, help="size of the pool, a multiple of 8")
    p.add_argument("--batch", type=int, default=32, help="sequences of a decode step")
    p.add_argument("--tokens", type=int, default=8192, help="mean length of the sequences")
    p.add_argument("--repeats", type=int, default=20, help="how often each batch of a spread is timed")
    a = p.parse_args(argv)
    for name in ("bytes", "batch", "tokens", "repeats"):
        if getattr(a, name) < 1:
            p.error("--%s must be positive" % name)
    if a.bytes % 8:
        p.error("--bytes must be a multiple of 8")
    if a.device < 0:
        p.error("--device must not be negative")
    if a.batch < 4:
        p.error("--batch must be 4 at least, for lengths to differ")
    return a


def spreads(batch, tokens):
    """Returns the batches of a spread: lists of lengths.

    Equal lengths of several sums come first; then one sum whose longest sequences are 2 to
    16 times the mean, held by one, a sixteenth and a quarter of the sequences, as far as
    that leaves 16 tokens to each of the others.
    """
    out = [[n] * batch for n in (tokens // 4, tokens // 2, tokens, tokens * 3 // 2, tokens * 2) if n > 0]
    total = batch * tokens
    for many in sorted({1, max(1, batch // 16), max(1, batch // 4)}):
        for factor in (2, 3, 4, 6, 8, 12, 16):
            long = factor * tokens
            rest = total - many * long
            short = rest // (batch - many)
            if short < 16:
                continue
            lengths = [long] * many + [short] * (batch - many)
            lengths[-1] += total - sum(lengths)  # what division has left over
            out.append(lengths)
    return out


def fill(torch, pool, seed):
    """Gives each word of a pool a different value: (seed + i) * STRIDE at byte 8 * i."""
    words = pool.view(torch.int64)
    for at in range(0, len(words), 1 << 24):  # the terms take memory, too
        end = min(len(words), at + (1 << 24))
        words[at:end] = (torch.arange(at, end, dtype=torch.int64, device=pool.device) + seed) * STRIDE  # wraps around


def handle(torch, tensor, device):
    """Returns a tensor's memory as in engine/api, kind 1, or the driver's reason why not."""
    import ctypes
    import os
    import struct

    cuda = ctypes.CDLL(os.environ.get("CASCADE_TEST_LIBCUDA") or "libcuda.so.1")
    base, size, name = ctypes.c_uint64(), ctypes.c_size_t(), (ctypes.c_ubyte * 64)()
    pointer = tensor.data_ptr()

    def call(function, *args):
        code = getattr(cuda, function)(*args)
        if code != 0:
            raise RuntimeError("%s: error %d" % (function, code))

    call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer))
    # Fails with 1 for memory of expandable_segments, which main switches off.
    call("cuIpcGetMemHandle", ctypes.byref(name), ctypes.c_uint64(pointer))
    uuid = (ctypes.c_ubyte * 16)()
    call("cuDeviceGetUuid_v2", ctypes.byref(uuid), ctypes.c_int(device))
    return struct.pack("<II16s16sQQ64s", 1, 0, os.urandom(16), bytes(uuid), pointer - base.value, size.value, bytes(name))


class Attention:
    """The attention of one decode step over sequences of given lengths."""

    def __init__(self, torch, device, most):
        self.torch, self.device = torch, device
        self.tries = [("flash_attn, paged", self.paged), ("PyTorch's flash attention", self.packed)]
        pages = (most + PAGE - 1) // PAGE + 1024
        shape = (pages, PAGE, KV_HEADS, HEAD)
        self.k = torch.randn(shape, dtype=torch.float16, device=device)
        self.v = torch.randn(shape, dtype=torch.float16, device=device)

    def paged(self, lengths):
        from flash_attn import flash_attn_with_kvcache

        torch, widest = self.torch, (max(lengths) + PAGE - 1) // PAGE
        table, at = [], 0
        for n in lengths:
            need = (n + PAGE - 1) // PAGE
            table.append([at + i for i in range(need)] + [0] * (widest - need))
            at += need
        q = torch.randn((len(lengths), 1, HEADS, HEAD), dtype=torch.float16, device=self.device)
        table = torch.tensor(table, dtype=torch.int32, device=self.device)
        seqlens = torch.tensor(lengths, dtype=torch.int32, device=self.device)
        return lambda: flash_attn_with_kvcache(q, self.k, self.v, cache_seqlens=seqlens, block_table=table, causal=True)

    def packed(self, lengths):
        torch = self.torch
        q = torch.randn((len(lengths), KV_HEADS, HEAD), dtype=torch.float16, device=self.device)
        starts = [0]
        for n in lengths:
            starts.append(starts[-1] + n)
        cq = torch.arange(len(lengths) + 1, dtype=torch.int32, device=self.device)
        ck = torch.tensor(starts, dtype=torch.int32, device=self.device)
        k, v = self.k.view(-1, KV_HEADS, HEAD)[: starts[-1]], self.v.view(-1, KV_HEADS, HEAD)[: starts[-1]]
        flash = torch.ops.aten._flash_attention_forward
        return lambda: flash(q, k, v, cq, ck, 1, max(lengths), 0.0, False, False)

    def step(self, lengths):
        """Returns the first kernel that works, and a function that launches it. A kernel that failed is
        not tried again."""
        wrong = []
        while self.tries:
            name, make = self.tries[0]
            try:
                run = make(lengths)
                run()
                self.torch.cuda.synchronize()
                return name, run
            except Exception as e:  # another version of it, or none
                wrong.append("%s: %s" % (name, e))
                self.tries.pop(0)
        raise RuntimeError("no attention kernel works here: " + "; ".join(wrong))

    def time(self, run, times):
        torch, out = self.torch, []
        for _ in range(times):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            end.synchronize()
            out.append(begin.elapsed_time(end) / 1e3)
        return out


def answer(attention, a, ask):
    if ask.get("spread"):
        points, kernel, left = [], "", spreads(a.batch, a.tokens)
        while left:
            name, run = attention.step(left[0])
            if points and name != kernel:  # times of two kernels are no spread: all over again
                points, left = [], spreads(a.batch, a.tokens)
                continue
            kernel, lengths = name, left.pop(0)
            attention.time(run, 3)
            took = sorted(attention.time(run, a.repeats))
            points.append({"batch": a.batch, "tokens": sum(lengths), "longest": max(lengths), "seconds": took[len(took) // 2]})
        return {"kernel": kernel, "points": points}
    steps = ask.get("decode", 0)
    if not 1 <= steps <= 100000:
        raise ValueError("%r steps" % steps)
    name, run = attention.step([a.tokens] * a.batch)
    attention.time(run, 3)
    return {"kernel": name, "seconds": attention.time(run, steps)}


def main(argv, lines, out):
    a = arguments(argv)

    def say(message):
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        import os

        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):  # whose memory has no name, see handle
            if "expandable_segments" in os.environ.get(name, ""):
                del os.environ[name]
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("this PyTorch finds no GPU")
        device = torch.device("cuda", a.device)
        torch.cuda.set_device(device)
        pool = torch.zeros(a.bytes, dtype=torch.int8, device=device)
        seed = int.from_bytes(os.urandom(7), "little")
        fill(torch, pool, seed)
        torch.cuda.synchronize()
        hello = {"owner": "PyTorch " + torch.__version__, "handle": handle(torch, pool, a.device).hex(), "bytes": a.bytes, "seed": seed}
    except Exception as e:
        say({"owner": "PyTorch", "error": "%s: %s" % (type(e).__name__, e)})
        return 1
    say(hello)
    attention = None
    for line in lines:
        try:
            if attention is None:
                most = max(sum(s) for s in spreads(a.batch, a.tokens)) + PAGE * a.batch
                attention = Attention(torch, device, most)
            say(answer(attention, a, json.loads(line)))
        except Exception as e:
            say({"error": "%s: %s" % (type(e).__name__, e)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin, sys.stdout))
