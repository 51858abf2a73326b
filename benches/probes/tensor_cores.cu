// How a tensor core rounds: `mma.m16n8k8` of TF32 with chosen inputs, of which no ISA says what comes out.
//
//     nvcc -arch=sm_80 -o tensor_cores tensor_cores.cu && ./tensor_cores
//
// One entry of the product is looked at: c + a0 b0 + ... + a7 b7. The bound that PowerSGD above rank 8 stands on is
// that an instruction is off by 7 * 2^-24 of the largest of the nine terms at most.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <vector>

__global__ void entry(const float* a, const float* b, const float* c, float* d, int count)
{
  const int lane = threadIdx.x % 32;
  for (int i = blockIdx.x; i < count; i += gridDim.x)
  {
    // Lane 4 g + t has row g of A at columns t and t + 4, and column g of B at rows t and t + 4.
    std::uint32_t fa[4] = {0, 0, 0, 0}, fb[2] = {0, 0};
    float fc[4] = {0, 0, 0, 0}, fd[4];
    if (lane < 4)
    {
      fa[0] = __float_as_uint(a[8 * i + lane]);
      fa[2] = __float_as_uint(a[8 * i + lane + 4]);
      fb[0] = __float_as_uint(b[8 * i + lane]);
      fb[1] = __float_as_uint(b[8 * i + lane + 4]);
    }
    if (lane == 0)
    {
      fc[0] = c[i];
    }
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
                 : "=f"(fd[0]), "=f"(fd[1]), "=f"(fd[2]), "=f"(fd[3])
                 : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]), "f"(fc[0]), "f"(fc[1]), "f"(fc[2]), "f"(fc[3]));
    if (lane == 0)
    {
      d[i] = fd[0];
    }
  }
}

constexpr int most = 1 << 16;
static std::vector<float> A(8 * most), B(8 * most), C(most), D(most);
static float *on_device[4];

static void check(cudaError_t result)
{
  if (result != cudaSuccess)
  {
    std::printf("%s\n", cudaGetErrorString(result));
    std::exit(1);
  }
}

static void run(int count)
{
  const std::vector<float>* from[3] = {&A, &B, &C};
  for (int i = 0; i < 3; ++i)
  {
    check(cudaMemcpy(on_device[i], from[i]->data(), (i < 2 ? 8 : 1) * count * sizeof(float), cudaMemcpyHostToDevice));
  }
  entry<<<1024, 32>>>(on_device[0], on_device[1], on_device[2], on_device[3], count);
  check(cudaGetLastError());
  check(cudaMemcpy(D.data(), on_device[3], count * sizeof(float), cudaMemcpyDeviceToHost));
}

// c + the sum of p, each p as p * 1.
static float one(float c, std::initializer_list<float> p)
{
  int k = 0;
  for (float x : p)
  {
    A[k] = x, B[k++] = 1;
  }
  for (; k < 8; ++k)
  {
    A[k] = B[k] = 0;
  }
  C[0] = c;
  run(1);
  return D[0];
}

int main()
{
  for (float*& memory : on_device)
  {
    check(cudaMalloc(&memory, 8 * most * sizeof(float)));
  }
  const auto bit = [](int e) { return std::ldexp(1.0f, e); };
  std::printf("the sum is rounded: 1 + 3 * 2^-25 is 1 + %a (to nearest 0x1p-23, cut 0)\n", one(1, {1.5f * bit(-24)}) - 1);
  std::printf("towards: -1 - 3 * 2^-25 is -1 + %a (to nearest or down -0x1p-23, cut 0)\n", one(-1, {-1.5f * bit(-24)}) + 1);
  std::printf("towards: 1 - 2^-26 is 1 + %a (to nearest 0, down or cut -0x1p-24)\n", one(1, {-bit(-26)}) - 1);
  for (int e = 24; e <= 30; ++e)
  {
    const float p = bit(-e);
    std::printf("1 + 8 * 2^-%d is 1 + %a (exactly %a)\n", e, one(1, {p, p, p, p, p, p, p, p}) - 1, 8 * p);
  }
  for (int e = 22; e <= 30; ++e)
  {
    const float p = bit(e);
    std::printf("2^%d + 1 - 2^%d is %a; with c = 2^%d: %a; c = 1: %a; the large ones in different halves: %a\n", e, e, one(0, {p, 1, -p}), e,
                one(p, {1, -p}), one(1, {p, -p}), one(0, {p, 1, 0, 0, -p}));
  }
  std::printf("2^-130 as an input times 1: %a; 2^-70 * 2^-70: ", one(0, {bit(-130)}));
  A[0] = bit(-70), B[0] = bit(-70), C[0] = 0;
  run(1);
  std::printf("%a; c = 2^-140 alone: %a\n", D[0], one(bit(-140), {}));
  std::printf("11 bits: 1 + 2^-10 as an input: 1 + %a; 1 + 2^-11: 1 + %a; 1 + 3 * 2^-12: 1 + %a\n", one(0, {1 + bit(-10)}) - 1,
              one(0, {1 + bit(-11)}) - 1, one(0, {1 + 3 * bit(-12)}) - 1);

  std::mt19937 random(1);
  double worst = 0, sum = 0;
  int worst_of = 0;
  for (int round = 0; round < 64; ++round)
  {
    for (int i = 0; i < most; ++i)
    {
      for (int k = 0; k < 8; ++k)
      {
        // TF32: 10 bits behind the point. Exponents differ, the more the later the round.
        const auto draw = [&] {
          const float value = (1024 + random() % 1024) / 1024.0f * (random() % 2 ? 1 : -1);
          return std::ldexp(value, -static_cast<int>(random() % (1 + round / 4)));
        };
        A[8 * i + k] = draw(), B[8 * i + k] = draw();
      }
      C[i] = std::ldexp(static_cast<float>(static_cast<int>(random()) >> 7), -22 - static_cast<int>(random() % 4));
    }
    run(most);
    for (int i = 0; i < most; ++i)
    {
      double exact = C[i], largest = std::fabs(C[i]);
      for (int k = 0; k < 8; ++k)
      {
        const double p = static_cast<double>(A[8 * i + k]) * B[8 * i + k];
        exact += p;
        largest = std::fmax(largest, std::fabs(p));
      }
      // Half of the last bit of the result itself is there however it is summed.
      const double off = std::fabs(D[i] - exact) / largest * 16777216;
      sum += (D[i] - exact) / largest * 16777216;
      if (off > worst)
      {
        worst = off, worst_of = round;
      }
    }
  }
  std::printf("%d sums: off by %.3f * 2^-24 of the largest term at most (round %d), %.4f on average with its sign\n", 64 * most, worst,
              worst_of, sum / (64.0 * most));
  return 0;
}
