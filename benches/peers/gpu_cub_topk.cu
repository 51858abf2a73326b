// Times cub::DeviceTopK: the k largest magnitudes of a gradient, with their indices. Compiled and run by gpu_cub_topk.py:
//
//     gpu_cub_topk SIZE,SIZE,... SECONDS
//
// Two rows a size and part: given the magnitudes as they are, and from the signed gradient through an iterator that takes them.
// The output is unsorted and not deterministic, the only kind that DeviceTopK has. A row a line on standard output, as
// gpu_common.py describes it.

#include <cub/device/device_topk.cuh>
#include <cub/version.cuh>
#include <cuda/iterator>
#include <cuda/std/execution>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr std::size_t rotate = std::size_t{1} << 30;

void check(cudaError_t result, const char* what)
{
  if (result != cudaSuccess)
  {
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(result));
    std::exit(1);
  }
}

double now()
{
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

__device__ std::uint32_t mix(std::uint32_t x)
{
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

__device__ float unit(std::uint32_t x)
{
  return (static_cast<float>(mix(x) >> 8) + 0.5f) * 0x1p-24f;
}

// Student's t with 4 degrees of freedom, as all benches here draw their gradients.
__global__ void fill(float* x, float* magnitude, std::uint32_t n, std::uint32_t seed)
{
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
  {
    const std::uint32_t at = mix(i + seed * 0x9e3779b9u);
    const float normal     = sqrtf(-2.0f * logf(unit(at))) * cospif(2.0f * unit(at + 1));
    const float chi        = -2.0f * logf(unit(at + 2) * unit(at + 3));
    x[i]                   = 0.01f * normal * rsqrtf(chi / 4.0f);
    magnitude[i]           = fabsf(x[i]);
  }
}

struct Magnitude
{
  __host__ __device__ float operator()(float x) const
  {
    return fabsf(x);
  }
};

struct Set
{
  float* x;
  float* magnitude;
  float* keys;
  std::uint32_t* indices;
};

template <class Keys>
cudaError_t select(void* storage, std::size_t& bytes, Keys keys, const Set& set, std::uint32_t n, std::uint32_t k)
{
  auto requirements = cuda::execution::require(
    cuda::execution::determinism::not_guaranteed, cuda::execution::output_ordering::unsorted);
  return cub::DeviceTopK::MaxPairs(
    storage, bytes, keys, set.keys, cuda::counting_iterator<std::uint32_t>{0}, set.indices, n, k, requirements);
}

void verify(const Set& set, std::uint32_t n, std::uint32_t k)
{
  std::vector<float> all(n), keys(k);
  std::vector<std::uint32_t> indices(k);
  check(cudaMemcpy(all.data(), set.magnitude, n * sizeof(float), cudaMemcpyDeviceToHost), "reading back");
  check(cudaMemcpy(keys.data(), set.keys, k * sizeof(float), cudaMemcpyDeviceToHost), "reading back");
  check(cudaMemcpy(indices.data(), set.indices, k * sizeof(std::uint32_t), cudaMemcpyDeviceToHost), "reading back");
  std::vector<float> sorted = all;
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<float>{});
  const float least = sorted[k - 1];
  std::vector<std::uint32_t> seen = indices;
  std::sort(seen.begin(), seen.end());
  bool good = std::adjacent_find(seen.begin(), seen.end()) == seen.end();
  for (std::uint32_t i = 0; good && i < k; ++i)
  {
    good = indices[i] < n && keys[i] >= least && std::fabs(all[indices[i]]) == keys[i];
  }
  if (!good)
  {
    std::fprintf(stderr, "wrong result: %u of %u\n", k, n);
    std::exit(1);
  }
}

// Seconds of so many turns through all sets.
template <class Work>
double turns(Work&& work, std::size_t sets, int repeats)
{
  cudaEvent_t start, stop;
  check(cudaEventCreate(&start), "an event");
  check(cudaEventCreate(&stop), "an event");
  check(cudaEventRecord(start), "an event");
  for (int r = 0; r < repeats; ++r)
  {
    for (std::size_t i = 0; i < sets; ++i)
    {
      work(i);
    }
  }
  check(cudaEventRecord(stop), "an event");
  check(cudaEventSynchronize(stop), "the selection");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, start, stop), "an event");
  check(cudaEventDestroy(start), "an event");
  check(cudaEventDestroy(stop), "an event");
  return milliseconds * 1e-3;
}

double at(const std::vector<double>& sorted, double part)
{
  const double place     = part * static_cast<double>(sorted.size() - 1);
  const std::size_t low  = static_cast<std::size_t>(place);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (place - static_cast<double>(low));
}

template <class Work>
void report(Work&& work, std::size_t sets, double seconds, std::uint32_t n, const char* setting, const char* note)
{
  const double end = now() + seconds;
  double taken     = 0;
  for (std::size_t warm = 0; warm < 20; warm += sets)
  {
    taken = turns(work, sets, 1);
  }
  int repeats = 1;
  while (taken < 2e-3 && repeats * sets < 4096 && now() < end)
  {
    repeats = static_cast<int>(repeats * std::min(16.0, std::max(2.0, 1.2 * 2e-3 / std::max(taken, 1e-9))));
    taken   = turns(work, sets, repeats);
  }
  std::vector<double> each;
  while (each.size() < 40 && (each.size() < 3 || now() < end))
  {
    each.push_back(turns(work, sets, repeats) / (static_cast<double>(repeats) * static_cast<double>(sets)));
  }
  std::sort(each.begin(), each.end());
  std::printf(
    "{\"peer\": \"cub::DeviceTopK\", \"version\": \"CUB %d.%d.%d\", \"device\": \"cuda\", \"codec\": \"top-k\", "
    "\"setting\": \"%s\", \"op\": \"encode\", \"dtype\": \"f32\", \"elements\": %u, \"seconds\": %.9e, "
    "\"seconds_p25\": %.9e, \"seconds_p75\": %.9e, \"samples\": %zu, \"runs\": %zu, \"sets\": %zu, "
    "\"clock\": \"cuda events\", \"note\": \"%s\"}\n",
    CUB_MAJOR_VERSION, CUB_MINOR_VERSION, CUB_SUBMINOR_VERSION, setting, n, at(each, 0.5), at(each, 0.25), at(each, 0.75),
    each.size(), static_cast<std::size_t>(repeats) * sets, sets, note);
  std::fflush(stdout);
}

} // namespace

int main(int argc, char** argv)
{
  if (argc != 3)
  {
    std::fprintf(stderr, "gpu_cub_topk SIZE,SIZE,... SECONDS\n");
    return 2;
  }
  std::vector<std::uint32_t> sizes;
  for (char* part = std::strtok(argv[1], ","); part != nullptr; part = std::strtok(nullptr, ","))
  {
    const unsigned long long size = std::strtoull(part, nullptr, 10);
    if (size < 1024 || size > (1ull << 31))
    {
      std::fprintf(stderr, "a size is from 1024 to 2^31; got %s\n", part);
      return 2;
    }
    sizes.push_back(static_cast<std::uint32_t>(size));
  }
  const struct
  {
    double part;
    const char* name;
  } parts[] = {{0.001, "0.1 %"}, {0.01, "1 %"}, {0.1, "10 %"}};
  const double slice = std::min(0.6, 0.6 * std::atof(argv[2]) / static_cast<double>(std::max<std::size_t>(1, sizes.size() * 6)));

  for (const std::uint32_t n : sizes)
  {
    const std::uint32_t most = static_cast<std::uint32_t>(std::ceil(n * 0.1));
    std::size_t free_bytes = 0, total = 0;
    check(cudaMemGetInfo(&free_bytes, &total), "the free memory");
    const std::size_t each = std::size_t{n} * 8 + std::size_t{most} * 8;
    const std::size_t sets = std::max<std::size_t>(1, std::min<std::size_t>((rotate + 4ull * n - 1) / (4ull * n), free_bytes / 2 / each));
    std::vector<Set> all(sets);
    for (std::size_t i = 0; i < sets; ++i)
    {
      check(cudaMalloc(&all[i].x, std::size_t{n} * 4), "memory for the gradient");
      check(cudaMalloc(&all[i].magnitude, std::size_t{n} * 4), "memory for the magnitudes");
      check(cudaMalloc(&all[i].keys, std::size_t{most} * 4), "memory for the values");
      check(cudaMalloc(&all[i].indices, std::size_t{most} * 4), "memory for the indices");
      fill<<<1024, 256>>>(all[i].x, all[i].magnitude, n, static_cast<std::uint32_t>(i));
      check(cudaGetLastError(), "filling");
    }
    for (const auto& part : parts)
    {
      const std::uint32_t k = static_cast<std::uint32_t>(std::ceil(n * part.part));
      auto signed_keys      = [&](const Set& set) { return cuda::make_transform_iterator(set.x, Magnitude{}); };
      std::size_t bytes = 0, more = 0;
      check(select(nullptr, bytes, all[0].magnitude, all[0], n, k), "the room that DeviceTopK asks for");
      check(select(nullptr, more, signed_keys(all[0]), all[0], n, k), "the room that DeviceTopK asks for");
      bytes = std::max(bytes, more);
      void* storage = nullptr;
      check(cudaMalloc(&storage, bytes), "memory for DeviceTopK");
      const auto given = [&](std::size_t i) { check(select(storage, bytes, all[i].magnitude, all[i], n, k), "DeviceTopK"); };
      const auto taken = [&](std::size_t i) { check(select(storage, bytes, signed_keys(all[i]), all[i], n, k), "DeviceTopK"); };
      given(0);
      verify(all[0], n, k);
      report(given, sets, slice, n, part.name, "given the magnitudes; unsorted, not deterministic");
      taken(0);
      verify(all[0], n, k);
      report(taken, sets, slice, n, part.name, "magnitudes through an iterator; without the signs; unsorted, not deterministic");
      check(cudaFree(storage), "freeing");
    }
    for (const Set& set : all)
    {
      for (void* buffer : {static_cast<void*>(set.x), static_cast<void*>(set.magnitude), static_cast<void*>(set.keys),
                           static_cast<void*>(set.indices)})
      {
        check(cudaFree(buffer), "freeing");
      }
    }
  }
  return 0;
}
