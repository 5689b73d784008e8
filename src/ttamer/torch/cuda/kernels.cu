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
