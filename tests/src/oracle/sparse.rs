//! The oracle's top-k: sorts, and writes bit after bit. From `docs/wire.md`, sharing no code with the product.

use super::wire::{Type, crc32};

/// The indices of the `k` largest magnitudes: NaN above infinity above numbers, ties by the lower index.
pub fn largest(x: &[f32], k: usize) -> Vec<u32> {
    let rank = |v: f32| (v.is_nan(), if v.is_nan() { 0.0 } else { v.abs() });
    let mut order: Vec<u32> = (0..x.len() as u32).collect();
    order.sort_by(|a, b| {
        let (a, b) = (rank(x[*a as usize]), rank(x[*b as usize]));
        b.0.cmp(&a.0).then(b.1.total_cmp(&a.1))
    });
    order.truncate(k);
    order.sort_unstable();
    order
}

fn words(bits: Vec<bool>) -> Vec<u8> {
    let byte = |bits: &[bool]| bits.iter().enumerate().map(|(i, bit)| u8::from(*bit) << i).sum::<u8>();
    let mut bytes: Vec<u8> = bits.chunks(8).map(byte).collect();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn elias_fano(n: usize, indices: &[u32]) -> Vec<u8> {
    if indices.is_empty() {
        return Vec::new();
    }
    let mut width = 0;
    while n / indices.len() >= 2 << width {
        width += 1;
    }
    let low = indices.iter().flat_map(|i| (0..width).map(move |bit| i >> bit & 1 == 1)).collect();
    let mut high = vec![false; indices.len() + ((n - 1) >> width)];
    for (k, i) in indices.iter().enumerate() {
        high[k + (*i as usize >> width)] = true;
    }
    [words(low), words(high)].concat()
}

/// The whole payload of entries whose values take `values` bytes.
pub fn payload(n: usize, gradient: Type, sent: Type, indices: &[u32], values: &[u8]) -> Vec<u8> {
    let tag = |of: Type| match of {
        Type::F32 => 0,
        Type::F16 => 1,
        Type::Bf16 => 2,
    };
    let list: Vec<u8> = indices.iter().flat_map(|i| i.to_le_bytes()).collect();
    let bitmap = words((0..n as u32).map(|i| indices.contains(&i)).collect());
    let mut best = (1, list);
    for (format, bytes) in [(2, elias_fano(n, indices)), (3, bitmap)] {
        if bytes.len() < best.1.len() {
            best = (format, bytes);
        }
    }
    if indices.len() == n {
        best = (0, Vec::new());
    }
    let mut out = b"GWIR".to_vec();
    out.extend([1, 3, tag(sent), best.0]);
    out.extend((n as u64).to_le_bytes());
    out.extend([0, 0, tag(gradient), 0]);
    out.extend((indices.len() as u32).to_le_bytes());
    out.extend([0; 4]);
    let body = [&best.1, values].concat();
    let crc = crc32(out.iter().chain(&body).copied());
    out.extend(crc.to_le_bytes());
    out.extend(body);
    out
}
