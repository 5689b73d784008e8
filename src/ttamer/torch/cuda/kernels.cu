// Small kernels of CUDA graphs, compiled for a device by NVRTC when they are first needed.

// Launches the next graph beside this one, which the kernel ends (the stream that stands for that
// is a constant of CUDA).
extern "C" __global__ void follow(
    const long long *result, const int *cases, unsigned int unit, unsigned int width,
    const unsigned long long *graphs)
{
    unsigned int word = *result;
    int next = cases[(word / unit) * width + word % unit];
    if (next >= 0)
        asm volatile(
            "{ .param .b64 graph; .param .b64 stream; .param .b32 error;"
            " st.param.b64 [graph], %0; st.param.b64 [stream], %1;"
            " call.uni (error), cudaGraphLaunch, (graph, stream); }"
            :: "l"(graphs[next]), "l"(0x0300000000000000ull) : "memory");
}

// Fills memory with elements of 1, 2 or 4 bytes.
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

// Copies up to four tensors in words of 16 bytes.
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
