//! Time of each operation on the CPU, for comparing two versions of this library: `cargo bench -p gradwire-benches`.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gradwire::{Device, Entropy, Qsgd, Seed, Uniform};
use gradwire_tests::cases;

fn codecs(c: &mut Criterion) {
    let device = Device::cpu();
    let gradient = cases::normal(1 << 22, 1);
    let seed = Seed::new(1);
    let mut group = c.benchmark_group("cpu");
    group.throughput(Throughput::Bytes(4 << 22)).sample_size(20);
    for (name, codec) in [("2 bit, 128", Qsgd::BITS_2), ("4 bit, 512", Qsgd::BITS_4), ("8 bit, 512", Qsgd::BITS_8)] {
        group.bench_function(format!("QSGD {name}, encode"), |b| b.iter(|| device.encode(&codec, &gradient, seed)));
        let Ok(payload) = device.encode(&codec, &gradient, seed) else { continue };
        let mut sum = vec![0.0; gradient.len()];
        group.bench_function(format!("QSGD {name}, decode-add"), |b| {
            b.iter(|| device.decode_add(&payload, 0.5, &mut sum));
        });
    }
    // Elias codes pay after the L2 norm, where most levels are small.
    for bits in [2, 4, 8] {
        let Ok(payload) = device.encode(&Qsgd::bits(bits).l2(), &gradient, seed) else { continue };
        group.bench_function(format!("QSGD {bits} bit, 512, L2, pack as Elias codes"), |b| {
            b.iter(|| device.pack(&payload, Entropy::Elias))
        });
        let Ok(packed) = device.pack(&payload, Entropy::Elias) else { continue };
        group.bench_function(format!("QSGD {bits} bit, 512, L2, unpack"), |b| b.iter(|| device.unpack(&packed)));
    }
    // Places pay where nearly all levels are zero: few levels in large buckets.
    if let Ok(payload) = device.encode(&Qsgd::bits(2).whole_tensor().l2(), &gradient, seed) {
        group.bench_function("QSGD 2 bit, whole, L2, pack as places", |b| {
            b.iter(|| device.pack(&payload, Entropy::Sparse));
        });
        if let Ok(packed) = device.pack(&payload, Entropy::Sparse) {
            group.bench_function("QSGD 2 bit, whole, L2, unpack places", |b| b.iter(|| device.unpack(&packed)));
        }
    }
    let codec = Uniform::bits(4);
    group.bench_function("uniform 4 bit, 512, encode", |b| b.iter(|| device.encode(&codec, &gradient, seed)));
    group.finish();
}

criterion_group!(benches, codecs);
criterion_main!(benches);
