// A loop in a CUDA graph and nothing else, to see what compute-sanitizer says of it:
//
//     nvcc -arch=sm_90 -o while_node while_node.cu
//     ./while_node
//     compute-sanitizer --tool memcheck ./while_node
//     compute-sanitizer --tool memcheck ./while_node unrolled
//
// Each of three graphs adds a to b five times, by a conditional node, or unrolled.
// Memory is a pool's, in the order of a stream.

#include <cstdio>
#include <cuda_runtime.h>

#define CHECK(call)                                                        \
  do {                                                                     \
    cudaError_t status = (call);                                           \
    if (status != cudaSuccess) {                                           \
      printf("line %d: %s\n", __LINE__, cudaGetErrorString(status));       \
      return 1;                                                            \
    }                                                                      \
  } while (0)

constexpr int COUNT = 64, TURNS = 5;

__global__ void ask(cudaGraphConditionalHandle goes_on, const int *left) {
  cudaGraphSetConditional(goes_on, *left > 0);
}

__global__ void step(const double *a, double *b, int *left) {
  b[threadIdx.x] += a[threadIdx.x];
  if (threadIdx.x == 0) *left -= 1;
}

static cudaError_t add(cudaGraphNode_t *node, cudaGraph_t graph,
                       const cudaGraphNode_t *after, void *kernel, int threads,
                       void **arguments) {
  cudaKernelNodeParams params = {};
  params.func = kernel;
  params.gridDim = dim3(1);
  params.blockDim = dim3(threads);
  params.kernelParams = arguments;
  return cudaGraphAddKernelNode(node, graph, after, after != nullptr, &params);
}

int main(int count, char **) {
  const bool unrolled = count > 1;
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaMemPoolProps of_pool = {};
  of_pool.allocType = cudaMemAllocationTypePinned;
  of_pool.location.type = cudaMemLocationTypeDevice;
  cudaMemPool_t pool;
  CHECK(cudaMemPoolCreate(&pool, &of_pool));
  for (int round = 0; round < 3; round++) {
    double *a, *b, host[COUNT];
    int *left, turns = TURNS;
    for (double &x : host) x = 1;
    CHECK(cudaMallocFromPoolAsync(&a, sizeof host, pool, stream));
    CHECK(cudaMallocFromPoolAsync(&b, sizeof host, pool, stream));
    CHECK(cudaMallocFromPoolAsync(&left, sizeof turns, pool, stream));
    CHECK(cudaMemcpyAsync(a, host, sizeof host, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemcpyAsync(left, &turns, sizeof turns, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemsetAsync(b, 0, sizeof host, stream));
    cudaGraph_t graph;
    cudaGraphExec_t made;
    cudaGraphNode_t asked, loop, stepped, last;
    cudaGraphConditionalHandle goes_on;
    void *of_step[] = {&a, &b, &left}, *of_ask[] = {&goes_on, &left};
    CHECK(cudaGraphCreate(&graph, 0));
    if (unrolled) {
      for (int turn = 0; turn < TURNS; turn++, last = stepped)
        CHECK(add(&stepped, graph, turn ? &last : nullptr, (void *)step, COUNT, of_step));
    } else {
      CHECK(cudaGraphConditionalHandleCreate(&goes_on, graph, 0, 0));
      CHECK(add(&asked, graph, nullptr, (void *)ask, 1, of_ask));
      cudaGraphNodeParams params = {};
      params.type = cudaGraphNodeTypeConditional;
      params.conditional.handle = goes_on;
      params.conditional.type = cudaGraphCondTypeWhile;
      params.conditional.size = 1;
      CHECK(cudaGraphAddNode(&loop, graph, &asked, nullptr, 1, &params));
      cudaGraph_t body = params.conditional.phGraph_out[0];
      CHECK(add(&stepped, body, nullptr, (void *)step, COUNT, of_step));
      CHECK(add(&last, body, &stepped, (void *)ask, 1, of_ask));
    }
    CHECK(cudaGraphInstantiate(&made, graph, 0));
    CHECK(cudaGraphLaunch(made, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(host, b, sizeof host, cudaMemcpyDeviceToHost));
    if (host[COUNT - 1] != TURNS) return printf("%g\n", host[COUNT - 1]), 1;
    CHECK(cudaGraphExecDestroy(made));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaFreeAsync(a, stream));
    CHECK(cudaFreeAsync(b, stream));
    CHECK(cudaFreeAsync(left, stream));
  }
  printf("passed\n");
}
