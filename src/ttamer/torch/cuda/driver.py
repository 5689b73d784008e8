"""NVIDIA's driver of CUDA: its bindings for Python, and kernels that are compiled for a device."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from ttamer.errors import ArgumentError

# The first version of CUDA whose driver launches graphs from the device beside others.
MIN_DRIVER = 12010
# The threads of a block that fills or copies memory.
THREADS = 256
# The most blocks that fill or copy memory; each goes on where the others end.
MAX_BLOCKS = 1024

# The kernels that launch the next graph beside this one, which the kernel ends (the stream that
# stands for that is a constant of CUDA), that fill memory with elements of 1, 2 or 4 bytes, and
# that copy up to four tensors in words of 16 bytes.
KERNELS = b"""
extern "C" __global__ void follow(
    const long long *result, const int *cases, unsigned int unit, unsigned int width,
    const unsigned long long *graphs)
{
    unsigned int found = *result;
    int next = cases[(found / unit) * width + found % unit];
    if (next >= 0)
        asm volatile(
            "{ .param .b64 graph; .param .b64 stream; .param .b32 error;"
            " st.param.b64 [graph], %0; st.param.b64 [stream], %1;"
            " call.uni (error), cudaGraphLaunch, (graph, stream); }"
            :: "l"(graphs[next]), "l"(0x0300000000000000ull) : "memory");
}

extern "C" __global__ void fill(
    unsigned char *target, unsigned int value, unsigned int element, unsigned long long width,
    unsigned long long height, unsigned long long pitch)
{
    unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    for (; at < width * height; at += gridDim.x * (unsigned long long)blockDim.x)
        target[(at / width) * pitch + at % width] = value >> (8 * (at % width % element));
}

__device__ void copy_one(const uint4 *source, uint4 *target, unsigned long long words)
{
    unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    for (; at < words; at += gridDim.x * (unsigned long long)blockDim.x)
        target[at] = source[at];
}

extern "C" __global__ void copy(
    const uint4 *source0, uint4 *target0, unsigned long long words0,
    const uint4 *source1, uint4 *target1, unsigned long long words1,
    const uint4 *source2, uint4 *target2, unsigned long long words2,
    const uint4 *source3, uint4 *target3, unsigned long long words3)
{
    copy_one(source0, target0, words0);
    copy_one(source1, target1, words1);
    copy_one(source2, target2, words2);
    copy_one(source3, target3, words3);
}
"""
# The line of an assembly after which functions are declared.
SIZE_LINE = b".address_size 64"
# The driver's function that launches a graph from the device.
LAUNCH = (
    b".extern .func (.param .b32 error) cudaGraphLaunch (.param .b64 graph, .param .b64 stream);"
)
# The kernels.
NAMES = ("follow", "fill", "copy")


@cache
def driver() -> Any:
    """Return the bindings of the driver."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise ArgumentError(
            "CUDA graphs need NVIDIA's bindings, which come with PyTorch for CUDA from 2.11 on: "
            "pip install cuda-bindings, or use Runner"
        ) from None
    return driver


def check_version() -> None:
    """Refuse drivers that cannot launch graphs from the device."""
    version = done(driver().cuDriverGetVersion())
    if version < MIN_DRIVER:
        raise ArgumentError(
            f"CUDA graphs need a driver of CUDA 12.1 or later, and this one is of "
            f"{version // 1000}.{version % 1000 // 10}: update it, or use Runner"
        )


@cache
def kernels(device: int) -> dict[str, Any]:
    """Compile the kernels for a device."""
    from cuda.bindings import nvrtc

    major, minor = torch.cuda.get_device_capability(device)
    program = done(nvrtc.nvrtcCreateProgram(KERNELS, b"kernels.cu", 0, [], []))
    options = [f"--gpu-architecture=compute_{major}{minor}".encode()]
    done(nvrtc.nvrtcCompileProgram(program, len(options), options))
    code = b" " * done(nvrtc.nvrtcGetPTXSize(program))
    done(nvrtc.nvrtcGetPTX(program, code))
    cuda = driver()
    module = done(cuda.cuModuleLoadData(code.replace(SIZE_LINE, SIZE_LINE + b"\n" + LAUNCH)))
    return {name: done(cuda.cuModuleGetFunction(module, name.encode())) for name in NAMES}


def current_stream(device: int) -> int:
    """Return the address of a device's current stream, which PyTorch's public function is slow at.

    That takes 5 us, this one 0.2.
    """
    return int(torch._C._cuda_getCurrentRawStream(device))


def done(found: tuple[Any, ...]) -> Any:
    """Return what a call of the driver returned, or raise its error."""
    error, *values = found
    if int(error):
        raise RuntimeError(f"CUDA: {error.name}")
    return values[0] if len(values) == 1 else values
